// The filter of a list by names, which the address holds as ?q=.

import { make, plain } from "./dom.js";
import { alter, here } from "./address.js";
import { later } from "./state.js";

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
