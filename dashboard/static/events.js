// The events of a period, by lease, client and cause. The address holds the filter.

import { $, keyed, make, plain, setText } from "./dom.js";
import { alter, here } from "./address.js";
import { reading, state } from "./state.js";
import { clock, count, many } from "./words.js";
import { periodOf, picker } from "./time.js";
import { eventItem } from "./event.js";

export function events() {
  const list = make("ol", "card events");
  list.id = "event-list";
  list.hidden = true;
  const note = make("p", "note");
  note.id = "events-note";
  const filters = make("div", "filters", field("lease", "Lease"), field("client", "Client"), causeField());
  filters.setAttribute("role", "group");
  filters.setAttribute("aria-label", "Show only some events");
  const bar = make("div", "bar-line", picker("1h", ["1h", "24h", "7d", "30d"]), filters);
  const element = make("div", "", bar, list, note);
  const query = () => {
    const { lease, client, cause } = here().query;
    const given = Object.entries({ lease, client, cause }).filter(([, value]) => value);
    return { ...Object.fromEntries(given), ...periodOf(here().query) };
  };
  const read = reading("happened", query, 5000, told => show(list, note, told));
  let typing = 0;
  filters.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(read.now, 300);
  });
  let seen = state.events;
  return {
    element,
    parts: ["events"],
    end: read.end,
    draw() { // the polls bring the latest events, so a new one is shown at once
      if (seen === state.events) return;
      seen = state.events;
      read.soon();
    },
  };
}

function show(list, note, told) {
  const all = told.events || [];
  list.hidden = all.length === 0;
  keyed(list, all, e => e.id, e => eventItem(e), () => {});
  const number = told.more ? "The latest " + count(all.length) + " events" : many(all.length, "event");
  const period = told.since ? " from " + clock(told.since) + " to " + clock(told.until) : "";
  setText(note, told.text ? "The events cannot be read: " + plain(told.text) :
    all.length === 0 ? "No event matches" + period + "." :
      number + period + ", the latest first.");
}

// field is a field of the filter: the whole name of a lease or a client.
function field(key, label) {
  const input = make("input", "");
  Object.assign(input, { id: "event-" + key, type: "search", autocomplete: "off", spellcheck: false });
  input.value = here().query[key] || "";
  const names = make("datalist", "");
  names.id = key + "-names";
  input.setAttribute("list", names.id);
  input.addEventListener("focus", () => {
    const known = key === "lease" ? state.leases.map(l => l.name) : [...state.byID.keys()];
    names.replaceChildren(...known.slice(0, 500).map(option));
  });
  input.addEventListener("input", () => alter({ [key]: input.value }));
  return make("label", "", label + " ", input, names);
}

function causeField() {
  const select = make("select", "");
  select.id = "event-cause";
  select.append(option(""), $("causes").content.cloneNode(true));
  select.options[0].textContent = "any";
  const now = here().query.cause || "";
  if (![...select.options].some(o => o.value === now)) select.append(option(now));
  select.value = now;
  select.addEventListener("input", () => alter({ cause: select.value }));
  return make("label", "", "Cause ", select);
}

function option(value) {
  const element = make("option", "", plain(value));
  element.value = value;
  return element;
}
