// The overrides of operators. They are shown where their effect is, so that it does not look like a fault.

import { card, keyed, make, mark, name } from "./dom.js";
import { operating, slotOf, state } from "./state.js";
import { clock, count } from "./words.js";
import { leaseLink, whoLink } from "./owners.js";
import { operateButton, undoOf } from "./verbs.js";

// newOverrides is a card with the overrides that concern something. It is hidden if there is none.
export function newOverrides(concerns) {
  const list = make("ul", "events");
  list.id = "override-list";
  const element = card("Overrides", null, list);
  return {
    element,
    draw() {
      const shown = state.overrides.filter(concerns);
      element.hidden = shown.length === 0;
      keyed(list, shown, w => JSON.stringify([w, slotOf(w.client)]), overrideItem, () => {});
    },
  };
}

function overrideItem(w) {
  const time = make("time", "", clock(w.since));
  time.dateTime = w.since;
  const text = make("span", "", mark(w.verb, "warn"), " ");
  const pinned = w.partition !== undefined;
  if (pinned) text.append("partition " + count(w.partition) + " of ");
  if (w.lease) text.append(leaseLink(w.lease));
  if (pinned) text.append(" to ");
  if (w.client) text.append(whoLink(w.client));
  if (w.actor) text.append(" by ", name(w.actor));
  if (w.reason) text.append(": ", name(w.reason));
  text.append(make("span", "sub", w.until ? ", until " + clock(w.until) : ", until it is taken back"));
  const undo = undoOf(w.verb);
  if (operating && undo) text.append(" ", operateButton({ ...undo.of(w), partition: w.partition }, undo.verb));
  return make("li", "", time, text);
}
