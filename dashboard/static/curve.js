// Curves: the samples of the last 24 hours, as a small line in each tile, and as a table. A gap in a line is a time
// without samples, for example because no client lived. If no samples come, the tile says since when.

import { fill, make, plain, row, scroll, svg, table } from "./dom.js";
import { clock, count } from "./words.js";

const height = 26; // in the units of the picture
const late = 3 * 60e3; // ms, in which three samples should have come

// newCurves returns the table of the curves of some tiles, and draw, which takes an answer of the server. Each of
// columns has the label of a tile, the kinds of samples that are added up, what they count, and how they are said.
export function newCurves(tiles, columns) {
  const details = make("details", "numbers", make("summary", "", "The last 24 hours as a table"));
  details.hidden = true;
  const element = make("div", "curves", details);
  let shown = null;
  const fillTable = () => {
    if (details.open && shown) details.replaceChildren(details.firstChild, scroll(tableOf(shown, columns)));
  };
  details.addEventListener("toggle", fillTable);
  return {
    element,
    draw(told) {
      const failure = told.text ? [make("p", "failure", "The curves cannot be read: " + plain(told.text))] : [];
      fill(element, told.text || "", details, ...failure);
      if (told.text) return;
      shown = { ...stepsOf(told), lines: columns.map(([, kinds]) => valuesOf(told, kinds)) };
      details.hidden = shown.lines.every(line => line.every(v => v === null));
      columns.forEach(([label, kinds, , say = count], at) => {
        const tile = [...tiles.children].find(t => t.key === label);
        if (!tile) return;
        tile.querySelector(".curve")?.remove();
        const line = shown.lines[at];
        const text = [line.some(v => v !== null) ? "up to " + say(Math.max(...line)) : "", silenceOf(told, line, kinds)]
          .filter(t => t);
        if (text.length > 0) tile.append(curve(line, "24 h: " + text.join(", ")));
      });
      fillTable();
    },
  };
}

// stepsOf returns the start of the first step, the length of a step in ms, and the number of steps.
function stepsOf(told) {
  const step = told.step * 1000;
  const since = Math.floor(new Date(told.since) / step) * step;
  return { since, step, steps: Math.ceil((new Date(told.until) - since) / step) };
}

// valuesOf returns the value of each step, the sum of some kinds; null: there is no sample.
function valuesOf(told, kinds) {
  const { since, step, steps } = stepsOf(told);
  const values = Array(steps).fill(null);
  for (const { points } of told.curves.filter(c => kinds.includes(c.kind))) {
    for (const { at, value } of points) {
      const place = Math.round((at * 1000 - since) / step);
      if (place >= 0 && place < steps) values[place] = (values[place] || 0) + value;
    }
  }
  return values;
}

// silenceOf says since when no samples have come, at all or of a line; empty: the latest is recent. If no row waits,
// the oldest has no age.
function silenceOf(told, line, kinds) {
  if (!told.last) return "no samples were taken";
  if (new Date(told.until) - new Date(told.last) > late) return "no samples since " + clock(told.last);
  const { since, step, steps } = stepsOf(told);
  const end = line.findLastIndex(v => v !== null) + 1;
  const ended = end > 0 && steps - end > 2 && !kinds.includes("oldest");
  return ended ? "no samples since " + clock(since + end * step) : "";
}

function curve(values, text) {
  const most = Math.max(...values.map(v => v ?? 0));
  const y = v => (height - 1.5 - v / (most || 1) * (height - 3)).toFixed(2);
  let path = "";
  values.forEach((v, at) => {
    if (v === null) return;
    const goesOn = at > 0 && values[at - 1] !== null;
    path += (goesOn ? "L" : "M") + at + " " + y(v) + "L" + (at + 1) + " " + y(v);
  });
  const size = { viewBox: `0 0 ${values.length} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" };
  const picture = svg("svg", size);
  picture.append(svg("path", { d: path }));
  const line = values.some(v => v !== null) ? [picture] : [];
  return make("dd", "curve", ...line, make("span", "", text));
}

function tableOf({ since, step, steps, lines }, columns) {
  const heads = columns.map(([label, , words]) => ["n", words ? label + ": " + words : label]);
  const all = table("The last 24 hours", ["Time", ...heads]);
  const first = Math.min(...lines.map(line => line.findIndex(v => v !== null)).filter(at => at >= 0));
  for (let at = Math.min(first, steps); at < steps; at++) {
    const cells = columns.map(([, , , say = count], i) => ["n", lines[i][at] === null ? "no sample" : say(lines[i][at])]);
    all.tBodies[0].append(row(clock(since + at * step), ...cells));
  }
  return all;
}
