// Checks the names of options. JavaScript ignores misspelt names: a token would not be sent, an episode would not end.

const plain = (name) => name.toLowerCase().replace(/[^a-z0-9]/g, "");

/** The number of letters to insert, delete or replace (Levenshtein 1965). */
function distance(one, other) {
  let row = Array.from({ length: other.length + 1 }, (_, j) => j);
  for (let i = 1; i <= one.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= other.length; j += 1)
      next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (one[i - 1] === other[j - 1] ? 0 : 1)));
    row = next;
  }
  return row[other.length];
}

/** Throw a RangeError for an unknown option. It names the nearest option, or all. `what`: the owner of the options. */
export function checkOptions(what, given, known) {
  if (given === null || typeof given !== "object") throw new RangeError(`the options of ${what} are an object, not ${given}`);
  const name = Object.keys(given).find((one) => !known.includes(one));
  if (name === undefined) return;
  const near = known
    .map((one) => [plain(name).startsWith(plain(one)) ? 0 : distance(plain(name), plain(one)), one])
    .filter(([far, one]) => far <= Math.ceil(Math.min(name.length, one.length) / 3))
    .sort(([far], [farther]) => far - farther)[0];
  const way = near ? `did you mean "${near[1]}"?` : `there are ${known.join(", ")}`;
  throw new RangeError(`${what} has no option "${name}": ${way}`);
}
