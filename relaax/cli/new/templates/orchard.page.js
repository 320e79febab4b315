// Plays N games of game.js with the agent of a RELAAX server, and shows the results. It is the same for every game.

import { Client, Finished, Interrupted } from "./rlx/rlx.js";
import { ACTION, OBSERVATION, World, draw } from "./game.js";

const MEAN = 100; // episodes
const KEPT = 4000; // points of the curve
const UNAUTHENTICATED = 5;
const OUTCOME = ["observation", "reward", "terminated", "truncated"]; // fields of the result of do()

const element = (id) => document.getElementById(id);
const settings = await (await fetch("settings.json")).json();
const servers = settings.servers.join(", ");
// State that a reload keeps. If it belongs to another game or run at this address, only its token is used.
const before = JSON.parse(sessionStorage.rlx ?? "{}");
const { run } = settings;
const kept = { run, steps: 0, episodes: 0, last: [], curve: [], sessionId: "", token: before.token ?? "" };
if (before.run === run) Object.assign(kept, before);
const worlds = Array.from({ length: settings.environments }, () => new World());
let client;
let begun = false;

function say(sentence, kind = "") {
  element("status").textContent = sentence;
  element("status").className = kind;
}

const numbers = (one) => (one !== null && typeof one === "object" ? Array.from(one).flatMap(numbers) : [one]);

/** Return the observation of one game as a list of numbers. `source`: the function that returned it. */
function checked(observation, source) {
  const [list, size] = [numbers(observation), OBSERVATION.shape?.reduce((product, axis) => product * axis, 1)];
  const wrong = list.findIndex((one) => !["number", "bigint", "boolean"].includes(typeof one) || Number.isNaN(one));
  if (wrong >= 0) throw new TypeError(`game.js: ${source}: number ${wrong} of the observation is ${list[wrong]}`);
  if (size !== undefined && list.length !== size)
    throw new TypeError(`game.js: ${source} gives ${list.length} numbers as the observation; OBSERVATION has ${size}`);
  return list;
}

/** Return the result of `do` if it has exactly the required fields. */
function outcome(result) {
  const missing = OUTCOME.find((name) => result?.[name] === undefined);
  const unknown = Object.keys(result ?? {}).find((name) => !OUTCOME.includes(name));
  const wrong = unknown === undefined ? missing && `${missing} is missing` : `"${unknown}" is not one of them`;
  if (wrong) throw new TypeError(`game.js: do() returns { ${OUTCOME.join(", ")} }; ${wrong}`);
  if (typeof result.reward !== "number") throw new TypeError(`game.js: do(): the reward is ${JSON.stringify(result.reward)}, not a number`);
  return { ...result, observation: checked(result.observation, "do()") };
}

const begin = (world) => checked(world.restart(), "restart()");

/** Return an error's message, with the line of game.js if the error was thrown there. */
function placed(error) {
  const place = /(game\.js:\d+)/.exec(error.stack?.split("\n").find((line) => /\.js:\d/.test(line)) ?? "");
  return place ? `${place[1]}: ${error.message}` : error.message;
}

/** Return the action of one game: a number, or the numbers of its vector. */
function actionOf(actions, i) {
  const size = actions[0].length / worlds.length;
  return size === 1 ? actions[0][i] : actions[0].slice(i * size, (i + 1) * size);
}

/** Wait for the next frame of a visible page. A hidden page gets no frames. */
const picture = () => new Promise((resolve) => (document.hidden ? setTimeout(resolve, 20) : requestAnimationFrame(resolve)));

/** Step all games until the connection ends. */
async function play() {
  const returns = worlds.map(() => 0);
  const first = worlds.map(begin);
  begun = true;
  let actions = await client.init([first.flat()]);
  kept.sessionId = client.sessionId;
  say(`connected to ${servers}: ${client.algorithm} learns`);
  for (;;) {
    const results = worlds.map((world, i) => outcome(world.do(actionOf(actions, i))));
    const seen = results.map((one) => one.observation);
    const over = results.map((one) => one.terminated || one.truncated);
    const next = seen.map((one, i) => (over[i] ? begin(worlds[i]) : one));
    results.forEach((one, i) => {
      returns[i] += one.reward;
      if (!over[i]) return;
      ended(returns[i]);
      returns[i] = 0;
    });
    const flags = { terminated: results.map((one) => one.terminated), truncated: results.map((one) => one.truncated) };
    const more = over.some(Boolean) ? { ...flags, finalObservation: [seen.flat()] } : {};
    kept.steps += worlds.length;
    const reward = results.map((one) => one.reward);
    actions = await client.step(reward, [next.flat()], more);
    if (element("slowly").checked) await picture();
  }
}

function ended(episodeReturn) {
  kept.episodes += 1;
  kept.last = [...kept.last, episodeReturn].slice(-MEAN);
  kept.curve.push(kept.last.reduce((sum, one) => sum + one, 0) / kept.last.length);
  if (kept.curve.length > KEPT) kept.curve = kept.curve.filter((_, i) => i % 2);
}

async function main() {
  for (;;) {
    const spaces = { observation: OBSERVATION, action: ACTION };
    const onRetry = ({ message }, seconds) => say(`${message}; trying again in ${seconds.toFixed(1)} s`, "waiting");
    const { token, sessionId } = kept;
    const identity = { token, sessionId, environment: settings.name, onRetry, retrySeconds: Infinity };
    client = new Client(settings.servers, { ...spaces, ...identity, environments: worlds.length, autoreset: "same_step" });
    say(`connecting to ${servers}`, "waiting");
    for (let lost = true; lost; ) {
      lost = false;
      await play().catch((error) => {
        if (error instanceof Interrupted) lost = true;
        else if (error instanceof Finished) say(error.message);
        else say(error.code === undefined ? placed(error) : error.message, "refused");
        element("ask").hidden = error.code !== UNAUTHENTICATED;
      });
    }
    await new Promise((resolve) => (element("ask").onsubmit = (event) => resolve(event.preventDefault())));
    kept.token = element("token").value.trim();
    element("ask").hidden = true;
  }
}

let shown = { time: performance.now(), steps: kept.steps };

function panel() {
  const seconds = (performance.now() - shown.time) / 1000;
  element("rate").textContent = Math.round((kept.steps - shown.steps) / seconds);
  shown = { time: performance.now(), steps: kept.steps };
  element("return").textContent = kept.curve.length ? kept.curve.at(-1).toFixed(2) : "none yet";
  const { width, height } = element("curve");
  const context = element("curve").getContext("2d");
  const [low, high] = [Math.min(0, ...kept.curve), Math.max(1, ...kept.curve)];
  const at = (one) => height - 12 - ((one - low) / (high - low)) * (height - 24);
  context.clearRect(0, 0, width, height);
  context.fillText(high.toFixed(1), 2, 10);
  context.fillText(low.toFixed(1), 2, height - 2);
  context.beginPath();
  kept.curve.forEach((one, i) => context.lineTo((i / Math.max(1, kept.curve.length - 1)) * width, at(one)));
  context.strokeStyle = "#2471a3";
  context.lineWidth = 2;
  context.stroke();
}

function paint() {
  element("episodes").textContent = kept.episodes;
  element("steps").textContent = kept.steps;
  const canvas = element("game");
  const columns = Math.ceil(Math.sqrt(worlds.length));
  const side = canvas.width / columns;
  const context = canvas.getContext("2d");
  if (begun) worlds.forEach((world, i) => draw(context, world, (i % columns) * side, Math.floor(i / columns) * side, side));
  requestAnimationFrame(paint);
}

addEventListener("pagehide", () => {
  sessionStorage.rlx = JSON.stringify(kept);
  client?.close();
});
addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
setInterval(panel, 1000);
requestAnimationFrame(paint);
main();
