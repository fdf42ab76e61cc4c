// The list of leases, with what is wrong first. Each has a small map of its owners.

import { fill, keyed, make, mark, row, setText, table, unseen } from "./dom.js";
import { isPaused, state } from "./state.js";
import { clock, count, sizeOf } from "./words.js";
import { filterField, matches, mostRows, noteOf } from "./filter.js";
import { leaseLink, whoIn } from "./owners.js";
import { operateButtons } from "./verbs.js";
import { drawSmallMap } from "./map.js";

const words = { none: "There is no lease yet.", noMatch: "No lease and no member matches.", thing: "lease" };

// factsOf counts the partitions of a lease that move, those without a live owner, and those that wait for the return of
// a client.
export function factsOf(lease) {
  let moving = 0, orphans = 0, waiting = 0;
  for (const holding of lease.holdings) {
    const owner = state.bySession.get(holding.owner_session);
    const n = sizeOf(holding.partitions);
    if (holding.owner === "" && (lease.awaited || []).some(a => a.client === holding.last_owner)) waiting += n;
    else if (!owner || owner.expired) orphans += n;
    else if (holding.owner_session !== holding.target_session) moving += n;
  }
  return { moving, orphans, waiting };
}

// isMissed reports whether somebody misses an owner where a lease has none. An operator has paused it otherwise, or its
// last member has left in order.
export const isMissed = lease => !isPaused(lease) && !lease.left;

// badness orders the list: without an owner, without a member, moving, then the rest.
function badness(lease) {
  const { moving, orphans } = factsOf(lease);
  if (orphans > 0) return isMissed(lease) ? 0 : 2;
  if (lease.members.length === 0) return 1;
  return moving > 0 ? 3 : 4;
}

export function leases() {
  const heads = ["Lease", "Owners of its partitions", ["n", "Partitions"], ["n", "Members"], "State"];
  if (operateButtons({ kind: "lease", subject: "" }).length > 0) heads.push(unseen("Operate"));
  const all = table("Leases", heads, "lease-rows");
  const note = make("p", "note");
  note.id = "leases-note";
  const box = make("div", "card scroll tall", all);
  const element = make("div", "", filterField("Show only leases and members that contain"), box, note);
  return {
    element,
    parts: ["leases", "clients", "overrides"],
    draw() {
      const shown = state.leases.filter(l => matches(l.name, ...l.members.map(m => m.client)));
      const ranked = shown.map(l => ({ l, rank: badness(l) })).toSorted((a, b) => a.rank - b.rank).map(x => x.l);
      box.hidden = shown.length === 0;
      keyed(all.tBodies[0], ranked.slice(0, mostRows), l => l.name, createRow, updateRow);
      setText(note, noteOf(state.leases.length, shown.length, words));
    },
  };
}

function createRow(lease) {
  const map = make("canvas", "small-map");
  map.setAttribute("aria-hidden", "true");
  const owner = make("span");
  return row(["", leaseLink(lease.name)], ["owners", map, owner], ["n"], ["n"], ["states"],
    ...operateButtons({ kind: "lease", subject: lease.name }).map(b => ["n", b]));
}

function updateRow(element, lease) {
  const [, owners, partitions, members, states] = element.children;
  const [map, owner] = owners.children;
  const single = lease.partitions === 1;
  map.hidden = single;
  owner.hidden = !single;
  if (single) whoIn(owner, lease.holdings[0]?.owner || "");
  else drawSmallMap(map, lease);
  setText(partitions, count(lease.partitions));
  setText(members, count(lease.members.length));
  const marks = marksOf(lease);
  fill(states, JSON.stringify(marks), ...marks.flatMap(([kind, text]) => [mark(text, kind), " "]));
}

export function marksOf(lease) {
  const { moving, orphans, waiting } = factsOf(lease);
  const marks = [];
  if (lease.left) marks.push(["", "no process runs"]);
  else if (orphans > 0) marks.push([isMissed(lease) ? "bad" : "warn", count(orphans) + " without a live owner"]);
  if (waiting > 0) marks.push(["warn", count(waiting) + " waiting for a client that restarts"]);
  if (lease.unowned > 0) marks.push(["bad", count(lease.unowned) + " over the ceilings"]);
  if (lease.members.length === 0 && !lease.left) marks.push(["warn", "no members"]);
  if (moving > 0) marks.push(["warn", count(moving) + " asked to hand over"]);
  for (const w of state.overrides) {
    if (w.lease !== lease.name) continue;
    marks.push(["warn", "override: " + w.verb + (w.partition === undefined ? "" : " of " + count(w.partition))]);
  }
  if (lease.due) marks.push(["", "a plan is due"]);
  if (marks.length === 0 && lease.partitions === 1 && lease.holdings[0]?.since) {
    marks.push(["", "since " + clock(lease.holdings[0].since)]);
  }
  return marks;
}
