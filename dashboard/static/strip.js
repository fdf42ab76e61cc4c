// The strip of time: rows of bars over one axis. With the keyboard it is a slider over the steps. The same
// numbers are in a table.

import { make, row, scroll, setText, svg, table } from "./dom.js";
import { axis } from "./time.js";
import { clock, count, many, outageText } from "./words.js";

const height = 44; // of a row, in CSS pixels

// The rows of the strip. Each has its parts, the worst first, which stands at the bottom: its kind of color,
// its words, and the bars that it counts. A client joins and leaves each of its leases, so the clients are
// counted, too.
const rowsOf = {
  moves: [
    ["Partitions moved", [
      ["warn", "taken over", ["given"]],
      ["calm", "handed over", ["handed over"]],
    ]],
    ["Clients", [
      ["bad", "evicted", ["evicted"]],
      ["bad", "back after an outage", ["no live client"]],
      ["warn", "new server generation", ["accepted", "new generation"]],
      ["quiet", "departures", ["left"]],
      ["good", "joins", ["joined"]],
    ]],
  ],
  runs: [
    ["Ticks", [
      ["bad", "failed", ["tick failed", "tick unknown"]],
      ["warn", "skipped or missed", ["tick skipped", "tick missed"]],
      ["quiet", "canceled", ["tick canceled"]],
      ["good", "succeeded", ["tick succeeded"]],
    ]],
    ["Jobs", [
      ["bad", "failed", ["job failed", "job unknown"]],
      ["quiet", "canceled", ["job canceled"]],
      ["good", "succeeded", ["job succeeded"]],
    ]],
  ],
};

const sayPart = (n, { words }) => count(n) + " " + (n === 1 ? words.replace(/^(join|departure)s$/, "$1") : words);

// drawStrip returns the picture and the table of what the server has counted in one period: moves, runs, or
// both. go is called with the start and the end of a step, for somebody who wants to see its events.
export function drawStrip(told, go) {
  const strips = Object.keys(rowsOf).filter(of => told[of]).map(of => ({ of, strip: told[of] }));
  const first = strips[0].strip;
  const step = first.step * 1000;
  const since = Math.floor(new Date(first.since) / step) * step;
  const steps = Math.ceil((new Date(first.until) - since) / step);
  const rows = strips.flatMap(({ of, strip }) => countRows(rowsOf[of], strip, { since, steps, step }));
  const stepOf = t => (new Date(t) - since) / step; // in steps from the start
  for (const r of rows.filter(r => r.label === "Clients")) {
    r.outages = (told.moves.outages || []).map(o => ({ ...o, first: stepOf(o.from), end: stepOf(o.to) }));
  }
  const empty = rows.every(r => r.outages.length === 0 && r.parts.every(p => p.total === 0));
  const isCut = rows.some(r => r.hidden > 0);
  const uncounted = isCut ? "More happened than is counted: in hatched time, only failures. " : "";
  const hint = uncounted + (empty ? "Nothing happened in this period." : "Point at a time, or use the arrow keys.");
  const cursor = make("div", "cursor");
  const place = make("div", "plots", ...rows.map(r => drawRow(r, steps)), cursor);
  const note = make("p", "cell");
  slider(place, cursor, note, { rows, steps, since, step, hint, go });
  return make("div", "strip", place, axis(since, since + steps * step), note, tableOf(rows, steps, since, step));
}

// countRows returns rows with the values of their parts in each step. hidden is the number of first steps that
// the server did not count.
function countRows(rows, strip, { since, steps, step }) {
  const known = new Map(); // by what, then by step
  for (const bar of strip.bars) {
    if (!known.has(bar.what)) known.set(bar.what, new Map());
    known.get(bar.what).set(Math.round((bar.at * 1000 - since) / step), bar.count);
  }
  const sum = (whats, at) => whats.reduce((n, what) => n + (known.get(what)?.get(at) || 0), 0);
  const hidden = Math.min(steps, Math.floor((new Date(strip.from) - since) / step));
  return rows.map(([label, parts]) => ({
    label,
    hidden: hidden > 1 ? hidden : 0,
    outages: [], // times in which no client lived
    parts: parts.map(([kind, words, whats]) => {
      const values = Array.from({ length: steps }, (_, at) => sum(whats, at));
      const clients = strip.clients?.[whats[0]];
      const of = clients ? " of " + many(clients, "client") : "";
      return { kind, words, values, total: values.reduce((a, b) => a + b, 0), of };
    }),
  }));
}

function drawRow({ label, parts, hidden, outages }, steps) {
  const sums = Array.from({ length: steps }, (_, at) => parts.reduce((n, p) => n + p.values[at], 0));
  const most = Math.max(...sums, 1);
  const picture = svg("svg", { viewBox: `0 0 ${steps} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  if (hidden > 0) picture.append(svg("rect", { x: 0, y: 0, width: hidden, height, class: "unknown" }));
  for (const { first, end } of outages) {
    const x = Math.max(0, first);
    picture.append(svg("rect", { x, y: 0, width: Math.max(0.2, Math.min(steps, end) - x), height, class: "outage" }));
  }
  for (let at = 0; at < steps; at++) {
    let bottom = height;
    for (const part of parts) {
      if (part.values[at] === 0) continue;
      const tall = Math.max(3, part.values[at] / most * (height - 4)); // a single failure is seen beside thousands
      const place = { x: at + 0.08, y: Math.max(0, bottom - tall), width: 0.84, height: tall };
      picture.append(svg("rect", { ...place, class: part.kind }));
      bottom -= tall;
    }
  }
  const some = parts.filter(p => p.total > 0);
  const silence = outages.map(o => make("span", "tally bad", "no client lived " + outageText(o))).slice(-2);
  const words = [...some.map(p => make("span", "tally " + p.kind, sayPart(p.total, p) + p.of)), ...silence];
  const facts = words.length > 0 ? words : [make("span", "sub", "none")];
  const peak = make("span", "peak", most > 1 ? "up to " + count(most) : "");
  return make("div", "plot", make("div", "plot-head", make("span", "plot-label", label), ...facts, peak), picture);
}

// slider lets one point at a step, or go through the steps with the arrow keys. Enter, or a click, shows it.
function slider(place, cursor, note, { rows, steps, since, step, hint, go }) {
  let now = -1;
  place.tabIndex = 0;
  place.setAttribute("role", "slider");
  place.setAttribute("aria-label", rows.map(r => r.label).join(", ") + ": use the arrow keys to go through time");
  place.setAttribute("aria-valuemin", "0");
  place.setAttribute("aria-valuemax", String(steps - 1));
  const text = at => {
    const said = rows.map(r => {
      const parts = r.parts.filter(p => p.values[at] > 0).map(p => sayPart(p.values[at], p));
      if (isSilent(r, at)) parts.push("no client lived");
      return parts.length > 0 ? r.label + ": " + parts.join(", ") : "";
    }).filter(t => t !== "");
    return clock(since + at * step) + ". " + (said.join(". ") || "Nothing") + ".";
  };
  const set = at => {
    now = at;
    cursor.hidden = at < 0;
    setText(note, at < 0 ? hint : text(at));
    place.setAttribute("aria-valuenow", String(Math.max(0, at)));
    place.setAttribute("aria-valuetext", at < 0 ? "none is chosen" : text(at));
    if (at < 0) return;
    cursor.style.left = (at / steps * 100).toFixed(3) + "%";
    cursor.style.width = (100 / steps).toFixed(3) + "%";
  };
  set(-1);
  const at = event => {
    const box = place.getBoundingClientRect();
    return Math.min(steps - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * steps)));
  };
  const open = () => go?.(since + now * step, since + (now + 1) * step);
  place.addEventListener("pointermove", event => set(at(event)));
  place.addEventListener("pointerleave", () => set(-1));
  place.addEventListener("click", event => {
    set(at(event));
    open();
  });
  place.addEventListener("keydown", event => {
    const last = steps - 1;
    const from = now < 0 ? steps : now;
    const to = {
      ArrowLeft: from - 1, ArrowRight: from + 1, PageUp: from - 10, PageDown: from + 10, Home: 0, End: last, Escape: -1,
    }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && now >= 0) open();
    if (to === undefined) return;
    event.preventDefault();
    set(event.key === "Escape" ? -1 : Math.min(last, Math.max(0, to)));
  });
}

// isSilent reports whether no client lived in some of a step.
const isSilent = (r, at) => r.outages.some(o => o.first < at + 1 && o.end > at);

// tableOf has the numbers of the picture, for screen readers and for copying. Steps without any are left out.
function tableOf(rows, steps, since, step) {
  const columns = rows.flatMap(r => r.parts.filter(p => p.total > 0).map(p => [r.label + ": " + p.words, p.values]));
  for (const r of rows.filter(r => r.outages.length > 0)) {
    const values = Array.from({ length: steps }, (_, at) => isSilent(r, at) ? 1 : 0);
    columns.push([r.label + ": in a time in which none lived", values]);
  }
  const details = make("details", "numbers", make("summary", "", "The numbers as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const all = table("Numbers of the picture", ["Time", ...columns.map(([head]) => ["n", head])]);
    for (let at = 0; at < steps; at++) {
      if (columns.every(([, values]) => values[at] === 0)) continue;
      all.tBodies[0].append(row(clock(since + at * step), ...columns.map(([, values]) => ["n", count(values[at])])));
    }
    details.append(scroll(all));
  });
  details.hidden = columns.length === 0;
  return details;
}
