// The filter of a list by names, which the address holds as ?q=.

import { make, plain } from "./dom.js";
import { alter, here } from "./address.js";
import { later, state } from "./state.js";
import { many } from "./words.js";

// mostRows is how many rows a list shows that has a filter above it.
export const mostRows = 500;

const filterOf = () => (here().query.q || "").toLowerCase();

// matches reports whether one of the names contains the filter.
export function matches(...names) {
  const text = filterOf();
  return text === "" || names.some(n => plain(n).toLowerCase().includes(text));
}

// filterField is the field of the filter.
export function filterField(label) {
  const input = make("input", "");
  Object.assign(input, { id: "filter", type: "search", autocomplete: "off", spellcheck: false });
  input.value = here().query.q || "";
  input.addEventListener("input", () => {
    alter({ q: input.value });
    later("filter");
  });
  return make("label", "filter", label + " ", input);
}

// noteOf says why a list shows fewer rows than there are things: of all of them, matching match the filter. words are
// for a list of nothing, for a filter that nothing matches, and for one thing.
export function noteOf(all, matching, { none, noMatch, thing }) {
  if (!state.status?.seen) return "";
  if (all === 0) return none;
  if (matching === 0) return noMatch;
  const hidden = matching - mostRows;
  return hidden > 0 ? many(hidden, "more " + thing) + " not shown: use the filter above." : "";
}
