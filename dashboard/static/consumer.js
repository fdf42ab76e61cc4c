// One consumer: what waits, which keys are blocked and why, its dead letters, and what operators changed.

import {
  agoOf, card, drawTiles, fill, keyed, make, mark, name, plain, refill, row, scroll, setText, sub, table,
} from "./dom.js";
import { addressOf, link } from "./address.js";
import { operating, reading } from "./state.js";
import { clock, count, firstLine, isTime, many, ofNs, span } from "./words.js";
import { operateButton, operateButtons } from "./verbs.js";
import { newCurves } from "./curve.js";
import { isBehind, marksOf, most1000 } from "./consumers.js";

export function consumer({ names: [of] }) {
  const failure = make("p", "failure card block");
  failure.hidden = true;
  const tiles = make("dl", "summary");
  tiles.setAttribute("aria-label", "Summary");
  const acts = make("span", "acts");
  const state = make("p", "marks");
  const why = make("p", "note");
  const curves = newCurves(tiles, [
    ["Waiting", ["waiting"], "", most1000], ["Oldest row", ["oldest"], "", s => span(s * 1000)], ["Blocked keys", ["blocked"]],
  ]);
  let sampled = null;
  const now = card("Now", acts, state, tiles, curves.element, why);
  const blocked = newRows(of, {
    title: "Blocked keys", id: "blocked-rows", kind: "blocked", verbs: ["retry_rows", "skip_rows"],
    heads: ["Key", ["n", "Row"], ["n", "Attempts"], "Since", "Next try", "Error"], cells: blockedCells,
    empty: "No key is blocked.",
  });
  const letters = newRows(of, {
    title: "Dead letters", id: "letter-rows", kind: "letters", verbs: ["return_rows"],
    heads: ["Key", ["n", "Row"], ["n", "Attempts"], "Taken out", "Error"], cells: letterCells,
    empty: "There are no dead letters.",
  });
  const changes = newChanges();
  const rest = make("div", "", now, blocked.element, letters.element, changes.element);
  rest.hidden = true;
  const read = reading("consumer", () => ({ name: of }), 3000, c => {
    failure.hidden = !c.text;
    setText(failure, c.text ? plain(c.text) : "");
    if (c.text) return;
    rest.hidden = false;
    const paused = isTime(c.paused_at);
    const operated = { kind: "consumer", subject: of, paused, blocked: c.blocked_keys, letters: c.dead_letters };
    fill(acts, JSON.stringify(operated), ...operateButtons(operated));
    const marks = marksOf(c);
    fill(state, JSON.stringify(marks), ...marks.flatMap(([kind, text]) => [mark(text, kind), " "]));
    const had = tiles.children.length;
    drawTiles(tiles, tilesOf(c));
    if (sampled && had === 0) curves.draw(sampled); // the samples came first
    const by = paused ? plain(c.paused_by) + " since " + clock(c.paused_at) + ": " + plain(c.paused_reason) : "";
    const pause = paused ? "Paused by " + by + ". " : "";
    const table = ["Its table is ", name(c.queue), ". Its partitions are those of the lease ",
      link(addressOf("leases", ["consumer/" + c.name]), name("consumer/" + c.name)), "."];
    fill(why, pause + c.queue, pause, ...table);
    blocked.update(c.blocked || [], c.blocked_keys);
    letters.update(c.letters || [], c.dead_letters);
    changes.update(c.changes || []);
  });
  reading("curves", () => ({ of: "consumer", name: of, since: "24h" }), 30_000, answer => {
    sampled = answer;
    curves.draw(sampled);
  });
  return { element: make("div", "", failure, rest), parts: [], end: read.end, draw() {} };
}

function tilesOf(c) {
  const still = c.first_for_ns > 60e9 ? "the first has waited for " + ofNs(c.first_for_ns) : "rows in the table";
  const waits = c.waiting === null ? "this role may not read the table" : still;
  const oldest = c.timed ? ofNs(c.oldest_ns) || "none" : "not known";
  const aged = c.timed ? "of keys that are not blocked" : "set Queue.Time to know it";
  const blocked = c.blocked_keys > 0 ? "the first for " + ofNs(c.blocked_for_ns) : "all keys are handled";
  const dead = c.dead_letters > 0 ? "taken out of the table" : "no row was given up";
  const unowned = c.owned < c.partitions && !c.lease_paused;
  return [
    ["Waiting", most1000(c.waiting), waits, ""],
    ["Oldest row", oldest, aged, isBehind(c) ? "warn" : ""],
    ["Blocked keys", most1000(c.blocked_keys), blocked, c.blocked_keys > 0 ? "bad" : ""],
    ["Dead letters", most1000(c.dead_letters), dead, ""],
    ["Owned", count(c.owned), "of " + many(c.partitions, "partition"), unowned ? "bad" : ""],
  ];
}

function blockedCells(b) {
  const next = isTime(b.next) ? clock(b.next) : "when somebody retries it";
  const skipped = b.skipped_by ? "being skipped by " + plain(b.skipped_by) : next;
  const error = ["text", errorOf(b.error), b.suspect ? mark("crash suspect", "warn") : ""];
  const attempts = count(b.attempts) + (b.crashes > 0 ? ", " + many(b.crashes, "crash", "crashes") : "");
  return [
    ["", name(b.key), sub("partition " + count(b.partition))], ["n", b.id], ["n", attempts],
    ["nowrap", clock(b.since), sub(agoOf(b.since))], ["nowrap", skipped], error,
  ];
}

function letterCells(l) {
  return [
    ["", name(l.key), sub("partition " + count(l.partition))], ["n", l.id], ["n", count(l.attempts)],
    ["nowrap", clock(l.at)], ["text", errorOf(l.error)],
  ];
}

// errorOf shows the first line of an error, and the rest if one opens it.
function errorOf(error) {
  if (!error) return "";
  const first = firstLine(error);
  if (first === error && first.length <= 200) return name(error);
  const whole = make("pre", "error", plain(error).replaceAll("\\n", "\n").replaceAll("\\t", "  "));
  return make("details", "", make("summary", "", name(first.slice(0, 200))), whole);
}

// newRows is a table of rows. An operator chooses some of them for one change.
function newRows(of, { title, id, kind, verbs, heads, cells, empty }) {
  const chosen = new Set();
  const note = make("p", "note");
  const acts = make("span", "acts");
  const every = make("input", "");
  Object.assign(every, { type: "checkbox" });
  every.setAttribute("aria-label", "Choose all shown");
  const all = table(title, operating ? [...heads, ["pick", every]] : heads, id);
  const box = scroll(all);
  let rows = [];
  const object = () => ({ kind, subject: of, rows: rows.filter(r => chosen.has(r.id)).map(r => r.id) });
  const buttons = operating ? verbs.map(verb => operateButton(object, verb)) : [];
  const counted = make("span", "sub");
  acts.append(...buttons.flatMap(b => [b, " "]));
  const choose = () => {
    const n = object().rows.length;
    setText(counted, n > 0 ? count(n) + " chosen" : "");
    for (const b of buttons) b.disabled = n === 0;
    every.checked = n > 0 && n === rows.length;
    every.indeterminate = n > 0 && n < rows.length;
  };
  every.addEventListener("change", () => {
    chosen.clear();
    if (every.checked) for (const r of rows) chosen.add(r.id);
    for (const input of all.tBodies[0].querySelectorAll("input")) input.checked = every.checked;
    choose();
  });
  const boxOf = r => {
    const input = make("input", "");
    Object.assign(input, { type: "checkbox", checked: chosen.has(r.id) });
    input.setAttribute("aria-label", "Choose row " + r.id);
    input.addEventListener("change", () => {
      if (input.checked) chosen.add(r.id);
      else chosen.delete(r.id);
      choose();
    });
    return input;
  };
  return {
    element: card(title, operating ? [counted, acts] : null, box, note),
    update(list, total) {
      rows = list;
      for (const gone of [...chosen].filter(id => !rows.some(r => r.id === id))) chosen.delete(gone);
      box.hidden = rows.length === 0;
      acts.hidden = rows.length === 0;
      keyed(all.tBodies[0], rows, r => r.id, () => row(), (element, r) =>
        refill(element, JSON.stringify(r), ...cells(r), ...(operating ? [["pick", boxOf(r)]] : [])));
      const more = total - rows.length;
      const cut = more > 0 ? "The first " + count(rows.length) + " of " + most1000(total) + " are shown." : "";
      setText(note, rows.length === 0 ? empty : cut);
      choose();
    },
  };
}

function newChanges() {
  const list = make("ol", "events");
  list.id = "change-list";
  const note = make("p", "note");
  return {
    element: card("Changes by operators", null, list, note),
    update(changes) {
      list.hidden = changes.length === 0;
      keyed(list, changes, c => JSON.stringify(c), c => {
        const time = make("time", "", clock(c.at));
        time.dateTime = c.at;
        const text = make("span", "", mark(c.cause, "verb"));
        if (c.id) text.append(" row " + c.id);
        else if (c.rows) text.append(" " + many(c.rows, "row"));
        if (c.actor) text.append(" by ", name(c.actor));
        if (c.reason) text.append(": ", name(c.reason));
        return make("li", "", time, text);
      }, () => {});
      setText(note, changes.length === 0 ? "No operator has changed it." : "");
    },
  };
}
