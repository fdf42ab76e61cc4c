// The list of consumers, with those that are blocked or behind first.

import { keyed, make, mark, name, plain, refill, row, setText, table } from "./dom.js";
import { addressOf, link } from "./address.js";
import { reading } from "./state.js";
import { count, isTime, many, ofNs } from "./words.js";
import { filterField, matches } from "./filter.js";

export const most1000 = n => n === null ? "not known" : n >= 1000 ? "1,000+" : count(n);

// isBehind reports whether a row has waited for a minute.
export const isBehind = c => c.oldest_ns > 60e9;

// marksOf returns what is to be seen about a consumer, the worst first.
export function marksOf(c) {
  const marks = [];
  if (c.owned < c.partitions && !c.lease_paused) {
    const unowned = many(c.partitions - c.owned, "partition") + " without an owner";
    marks.push(["bad", c.owned === 0 ? "no process runs it" : unowned]);
  }
  if (c.blocked_keys > 0) marks.push(["bad", many(c.blocked_keys, "blocked key")]);
  if (c.unhandled > 0) marks.push(["bad", many(c.unhandled, "row") + " in no partition"]);
  if (isBehind(c)) marks.push(["warn", "behind by " + ofNs(c.oldest_ns)]);
  if (isTime(c.paused_at)) marks.push(["warn", "paused"]);
  if (c.lease_paused) marks.push(["warn", "lease paused"]);
  if (c.dead_letters > 0) marks.push(["", many(c.dead_letters, "dead letter")]);
  if (marks.length === 0) marks.push(["good", "well"]);
  return marks;
}

const badness = c => ({ bad: 0, warn: 1 }[marksOf(c)[0][0]] ?? 2);

export function consumers() {
  const heads = [
    "Consumer", "State", ["n", "Waiting"], ["n", "Oldest row"], ["n", "Blocked keys"],
    ["n", "Dead letters"], ["n", "Owned"],
  ];
  const all = table("Consumers", heads, "consumer-rows");
  const box = make("div", "card scroll tall", all);
  const note = make("p", "note");
  box.hidden = true;
  let told = null;
  const update = () => {
    const list = told?.consumers || [];
    const shown = list.filter(c => matches(c.name, c.queue)).toSorted((a, b) => badness(a) - badness(b));
    box.hidden = shown.length === 0;
    keyed(all.tBodies[0], shown, c => c.name, () => row(), updateRow);
    setText(note, !told ? "" : told.text ? "The consumers cannot be read: " + plain(told.text) :
      told.missing ? "This database has no tables of package consumer." :
        list.length === 0 ? "There is no consumer yet." :
          shown.length === 0 ? "No consumer and no table matches." : "");
  };
  const read = reading("consumers", () => ({}), 5000, answer => {
    told = answer;
    update();
  });
  const element = make("div", "", filterField("Show only consumers and tables that contain"), box, note);
  return { element, parts: [], end: read.end, draw: update };
}

function updateRow(element, c) {
  refill(element, JSON.stringify(c),
    ["", link(addressOf("consumers", [c.name]), name(c.name)), make("div", "sub", name(c.queue))],
    ["states", ...marksOf(c).flatMap(([kind, text]) => [mark(text, kind), " "])],
    ["n", most1000(c.waiting)],
    ["n" + (isBehind(c) ? " warn-text" : ""), c.timed ? ofNs(c.oldest_ns) || "none waits" : "not known"],
    ["n" + (c.blocked_keys > 0 ? " bad-text" : ""), most1000(c.blocked_keys)],
    ["n", most1000(c.dead_letters)],
    ["n", count(c.owned) + " of " + count(c.partitions)]);
}
