// An event, as a line of a list.

import { make, mark, name, plain } from "./dom.js";
import { clock, many, outageText, rangesText, sizeOf } from "./words.js";
import { leaseLink, whoLink } from "./owners.js";

// kindOf returns the kind of color of a cause.
export function kindOf(event) {
  if (event.actor) return "verb";
  return kinds[event.cause] || "quiet";
}

const kinds = {
  evicted: "bad", "no live client": "bad", given: "warn", accepted: "warn", "new generation": "warn",
  "handed over": "calm", joined: "good",
};

// outageOf returns the time in which no client lived, of an event about it; otherwise null.
function outageOf(event) {
  const [, from, to] = event.cause === "no live client" && /^from (\S+Z) to (\S+Z)$/.exec(event.reason) || [];
  return from ? { from, to } : null;
}

// wordsOf returns what a cause means.
export const wordsOf = cause => cause === "given" ? "taken over" : cause === "silent" ? "last heard" : cause;

// eventItem returns a line. slotOf returns the color of an owner that is no longer live, if it has one. A line on
// the page of a lease does not name that lease.
export function eventItem(event, slotOf = () => undefined, lease = "") {
  const time = make("time", "", clock(event.at));
  time.dateTime = event.at;
  const text = make("span", "", mark(wordsOf(event.cause), kindOf(event)));
  text.firstChild.title = plain(event.cause);
  if (event.lease && event.lease !== lease) text.append(" ", leaseLink(event.lease));
  if (event.partitions.length > 0) {
    const ranges = make("span", "sub", rangesText(event.partitions));
    text.append(" ", many(sizeOf(event.partitions), "partition"), " ", ranges);
  }
  if (event.name) text.append(" ", name(event.name));
  const noun = event.lease.startsWith("schedule/") ? "job" : "row";
  if (event.row) text.append(" " + noun + " " + event.row);
  else if (event.rows) text.append(" " + many(event.rows, noun));
  const args = Object.entries(event.args || {}).map(([of, value]) => of + " " + value);
  if (args.length > 0) text.append(" ", make("span", "sub", plain(args.toSorted().join(", "))));
  if (event.from) text.append(event.partitions.length > 0 ? " from " : " ", whoLink(event.from, slotOf(event.from)));
  if (event.to) text.append(" to ", whoLink(event.to, slotOf(event.to)));
  if (event.actor) text.append(" by ", name(event.actor));
  const outage = outageOf(event);
  if (outage) text.append(" " + outageText(outage));
  else if (event.reason) text.append(": ", name(event.reason));
  return make("li", "", time, text);
}
