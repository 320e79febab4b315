// The live page of a run. It asks for what changed, and shows all texts as text.
"use strict";

const PERIOD = 2000; // milliseconds between two requests
const TIMEOUT = 9000;
const HEIGHT = 180; // of a chart, in pixels
const FIRST = ["episode", "evaluation", "speed", "loss"]; // groups of curves that are open at first
const MAIN = "episode/mean_return_100"; // the first curve of its group
const CAPTIONS = {
  workers: "Workers, the longest silent first. Each serves one connection.",
  servers: "RLX servers and their connections",
  replay: "Shards of the replay memory",
  evaluations: "Evaluations, the newest first",
};
const curves = new Map(); // name -> { steps, values, unit, latest, step, figure, label, chart }
const told = new Map(); // id of a warning -> its element
const shown = {}; // the content of each part, to change only what is new
let session = "", changes = 0, picture = 0;

const part = (id) => document.getElementById(id);
const element = (name, text = "", attributes = {}) => {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};
const isNew = (id, content) => {
  const text = JSON.stringify(content);
  if (shown[id] === text) return false;
  shown[id] = text;
  return true;
};
const setText = (id, text) => { if (isNew(id, text)) part(id).textContent = text; };

function showFigures(figures) {
  if (!isNew("figures", figures)) return;
  part("figures").replaceChildren(...figures.map(([name, value]) => {
    const both = element("div");
    both.append(element("dt", name), element("dd", value));
    return both;
  }));
}

function showTable(id, { columns, rows, note }) {
  if (!isNew(id, [columns, rows, note])) return;
  const parts = note ? [element("p", note)] : [];
  if (rows.length) {
    // Roles are explicit, because a narrow page shows rows as blocks.
    const table = element("table", "", { role: "table" });
    const head = element("tr", "", { role: "row" });
    head.append(...columns.map((name) => element("th", name, { role: "columnheader", scope: "col" })));
    const [top, body] = [element("thead", "", { role: "rowgroup" }), element("tbody", "", { role: "rowgroup" })];
    top.append(head);
    body.append(...rows.map((cells) => {
      const row = element("tr", "", { role: "row" });
      if (cells.some((text) => /^disconnected|^does not answer/.test(text))) row.className = "gone";
      row.append(...cells.map((text, index) => index
        ? element("td", text, { role: "cell", "data-column": columns[index] })
        : element("th", text, { role: "rowheader", scope: "row", "data-column": columns[0] })));
      return row;
    }));
    table.append(element("caption", CAPTIONS[id]), top, body);
    parts.unshift(table);
  }
  part(id).replaceChildren(...parts);
}

function showWarnings(warnings, note) {
  const ids = new Set(warnings.map((one) => one.id));
  for (const [id, item] of told) if (!ids.has(id)) { item.remove(); told.delete(id); }
  for (const { id, time, level, log, text } of warnings) {
    if (told.has(id)) continue;
    const item = element("li", `${new Date(1000 * time).toLocaleTimeString()} ${log}: ${text}`, { class: level });
    told.set(id, item);
    part("warnings").append(item);
    part("warnings-log").scrollTop = part("warnings-log").scrollHeight;
  }
  setText("warnings-note", note || (warnings.length ? "" : "There are no warnings."));
  part("warnings-log").hidden = !warnings.length;
}

function showPicture({ number, text }) {
  setText("picture-text", text);
  const image = part("image");
  image.hidden = !number;
  if (!number || number === picture) return;
  picture = number;
  image.alt = "The observation of the first environment";
  image.src = `picture?${session}-${number}`;
}

function groupOf(name) {
  const group = name.includes("/") ? name.split("/")[0] : "other";
  const id = `group-${group}`;
  let found = document.getElementById(id);
  if (!found) {
    found = element("details", "", { id });
    found.open = FIRST.includes(group) || name === "loss";
    found.append(element("summary", group), element("div", "", { class: "charts" }));
    const rank = (one) => (FIRST.indexOf(one) + 1 || 99) + one;
    const later = [...part("curves").children].find((one) => rank(one.id.slice(6)).localeCompare(
      rank(group), "en", { numeric: true }) > 0);
    part("curves").insertBefore(found, later ?? null);
  }
  return found;
}

function addCurve(name) {
  const group = groupOf(name);
  const figure = element("figure");
  const [label, chart] = [element("figcaption", name), element("div", "", { class: "chart", role: "img" })];
  figure.append(label, chart);
  figure.dataset.name = name;
  const charts = group.lastElementChild;
  const later = [...charts.children].find(({ dataset }) => dataset.name !== MAIN && dataset.name.localeCompare(name) > 0);
  charts.insertBefore(figure, name === MAIN ? charts.firstChild : later ?? null);
  const made = { name, group, steps: [], values: [], figure, label, target: chart, chart: null, dirty: true, seen: false };
  curves.set(name, made);
  onScreen.observe(figure);
  return made;
}

const options = (width) => {
  const style = getComputedStyle(document.documentElement);
  const [dim, line, curve] = ["--dim", "--line", "--curve"].map((name) => style.getPropertyValue(name).trim());
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const axis = { stroke: dim, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, size: 60,
    values: (_, ticks) => ticks.map((value) => short.format(value)) };
  return {
    width, height: HEIGHT, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false } },
    axes: [{ ...axis, size: 32, space: 60 }, axis],
    series: [{}, { stroke: curve, width: 1.5 }], // with a point for each value where there are few
  };
};

// Only charts on the screen are drawn: drawing takes most of the page's time, which may be the training's.
const onScreen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const one = curves.get(target.dataset.name);
    if (!one) continue;
    one.seen = isIntersecting;
    draw(one);
  }
});

function draw(one) {
  if (!one.seen || !one.dirty || !one.steps.length) return;
  one.dirty = false;
  if (one.chart) one.chart.setData([one.steps, one.values]);
  else one.chart = new uPlot(options(one.target.clientWidth), [one.steps, one.values], one.target);
}

function redraw() {
  for (const one of curves.values()) {
    one.chart?.destroy();
    one.chart = null;
    one.dirty = true;
    draw(one);
  }
}

function showCurves(changed) {
  for (const [name, { whole, points, unit, latest, step }] of Object.entries(changed)) {
    const one = curves.get(name) ?? addCurve(name);
    if (whole) [one.steps, one.values] = [[], []];
    for (const [at, value] of points) { one.steps.push(at); one.values.push(value); }
    one.dirty = true;
    const last = latest === null ? "no value" : `${latest}${unit ? ` ${unit}` : ""} at step ${step}`;
    one.label.textContent = `${name}: ${last}`;
    one.target.setAttribute("aria-label", `Curve of ${name}, ${one.steps.length} points, last value ${last}`);
    draw(one);
  }
  setText("curves-note", curves.size ? "" : "There are no curves yet.");
}

function show(data) {
  if (session && data.session && data.session !== session) { // `relaax web` has been restarted
    for (const one of curves.values()) one.figure.remove();
    onScreen.disconnect();
    curves.clear();
  }
  setText("name", data.name);
  document.title = `${data.name} – RELAAX`;
  setText("state", data.state);
  if (!data.session) return; // still reading
  [session, changes] = [data.session, data.changes];
  showFigures(data.figures);
  for (const id of Object.keys(CAPTIONS)) showTable(id, data.tables[id]);
  showWarnings(data.warnings, data.warnings_note);
  showPicture(data.picture);
  showCurves(data.curves);
}

async function poll() {
  if (!document.hidden) {
    try {
      // An URL without the user name and the token that the page's own URL may have.
      const url = new URL(`data?session=${session}&since=${changes}`, location.origin + location.pathname);
      const answer = await fetch(url, { signal: AbortSignal.timeout(TIMEOUT) });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      show(await answer.json());
    } catch (error) {
      setText("state", `relaax web does not answer: ${error.message}. The page shows the last known state.`);
    }
  }
  setTimeout(poll, PERIOD);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new ResizeObserver(() => {
  for (const one of curves.values()) one.chart?.setSize({ width: one.target.clientWidth, height: HEIGHT });
}).observe(part("curves"));
poll();
