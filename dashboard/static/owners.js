// Owners as the page shows them: their color, pattern and letters, and their name.

import { fill, make, name } from "./dom.js";
import { addressOf, link } from "./address.js";
import { tag } from "./colors.js";
import { later, slotOf, state } from "./state.js";

// who shows a client. slot is its color; a client that is not live has none, unless one is given.
export function who(id, slot = slotOf(id)) {
  const element = make("span", "who");
  if (slot >= 0) element.append(tag(slot));
  element.append(name(id));
  return element;
}

// whoLink is who, as a link to the client.
export function whoLink(id, slot) {
  const element = link(addressOf("clients", [id]), who(id, slot));
  element.classList.add("quiet");
  return element;
}

// whoButton is who, as a button that highlights its partitions.
export function whoButton(id) {
  const element = make("button", "who");
  const slot = slotOf(id);
  if (slot >= 0) element.append(tag(slot));
  element.append(name(id));
  element.type = "button";
  element.title = "Highlight its partitions";
  element.setAttribute("aria-pressed", String(state.chosen === id));
  element.addEventListener("click", () => {
    state.chosen = state.chosen === id ? null : id;
    later("chosen");
  });
  return element;
}

// whoIn shows a client in a cell, and keeps the element while it is the same.
export function whoIn(cell, id, show = whoLink) {
  fill(cell, JSON.stringify([id, slotOf(id)]), id === "" ? make("span", "sub", "no owner") : show(id));
  cell.querySelector("button.who")?.setAttribute("aria-pressed", String(state.chosen === id));
}

export const leaseLink = lease => link(addressOf("leases", [lease]), name(lease));
