// The named locks: who holds each, and how many wait.

import { fill, keyed, make, mark, name, plain, row, setText, table } from "./dom.js";
import { slotOf, state } from "./state.js";
import { clock, count } from "./words.js";
import { filterField, matches } from "./filter.js";
import { whoLink } from "./owners.js";

export function locks() {
  const all = table("Locks", ["Lock", "Held by", "Since", ["n", "Waiting"]], "lock-rows");
  const box = make("div", "card scroll tall", all);
  const note = make("p", "note");
  note.id = "locks-note";
  const element = make("div", "", filterField("Show only locks and holders that contain"), box, note);
  return {
    element,
    parts: ["locks", "clients"],
    draw() {
      const told = state.locks;
      if (!told) return;
      const shown = told.locks.filter(l => matches(l.name, ...l.holders.map(h => h.client)));
      const ranked = shown.toSorted((a, b) => lostOf(b) - lostOf(a) || (b.waiting > 0) - (a.waiting > 0));
      box.hidden = shown.length === 0;
      keyed(all.tBodies[0], ranked, l => l.name, l => row(name(l.name), [""], ["nowrap"], ["n"]), updateRow);
      setText(note, told.failure ? "The locks cannot be read: " + plain(told.failure) :
        told.locks.length === 0 ? "No named lock is held or awaited." :
          shown.length === 0 ? "No lock and no holder matches." :
            told.more ? "Only the first " + count(told.locks.length) + " by name are shown." : "");
    },
  };
}

const lostOf = lock => lock.holders.some(h => h.lost);

function updateRow(element, lock) {
  const [, by, since, waiting] = element.children;
  const holders = lock.holders.map(h => h.client);
  const words = holders.flatMap((id, i) =>
    [i > 0 ? ", " : "", id === "" ? make("span", "sub", "an evicted client") : whoLink(id)]);
  if (holders.length === 0) words.push(make("span", "sub", "no holder yet"));
  if (lock.shared) words.push(" ", mark("shared"));
  if (lostOf(lock)) words.push(" ", mark("lost, not released", "bad"));
  fill(by, JSON.stringify([holders.map(id => [id, slotOf(id)]), lock.shared, lostOf(lock)]), ...words);
  setText(since, lock.holders.length > 0 ? clock(lock.holders[0].since) : "");
  setText(waiting, count(lock.waiting));
}
