// Elements. All names that processes choose go through name(), as text, never as markup.

import { ago } from "./words.js";

export const $ = id => document.getElementById(id);

// make("p", "note", "text", child) creates an element. Strings become text.
export function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

// svg creates an element of a picture.
export function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Characters that are invisible or have effects: controls, direction marks, other format characters,
// unassigned characters, and spaces except the space.
const hidden = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const hiddenAll = new RegExp(hidden, "gu");

function escaped(character) {
  const short = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[character];
  return short || "\\u{" + character.codePointAt(0).toString(16) + "}";
}

// plain returns a text for labels and titles.
export const plain = text => text.replace(hiddenAll, escaped);

// name shows a name that a process chose: isolated, with invisible characters as escapes.
export function name(text) {
  const element = make("bdi", "name");
  for (let rest = text; rest !== "";) {
    const found = hidden.exec(rest);
    const end = found ? found.index : rest.length;
    if (end > 0) element.append(rest.slice(0, end));
    if (!found) break;
    element.append(make("span", "esc", escaped(found[0])));
    rest = rest.slice(end + found[0].length);
  }
  return element;
}

// keyed gives parent one element for each item, in order. Elements are kept, so the focus stays.
export function keyed(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map(element => [element.key, element]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = old.get(key);
    old.delete(key);
    if (!element) {
      element = create(item);
      element.key = key;
    }
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
  for (const element of old.values()) {
    const focused = element.contains(document.activeElement);
    element.remove();
    if (focused) $("main").focus({ preventScroll: true }); // otherwise the keyboard would begin at the top
  }
}

// fill sets the children of an element if they have changed.
export function fill(element, signature, ...children) {
  if (element.signature === signature) return;
  element.signature = signature;
  element.replaceChildren(...children);
}

export function button(text, press, label) {
  const element = make("button", "act", text);
  element.type = "button";
  if (label) element.setAttribute("aria-label", label);
  element.addEventListener("click", press);
  return element;
}

// table returns a table with heads, each a text or [kind, text]. Its body has the ID, if one is given.
export function table(label, heads, id) {
  const row = make("tr", "");
  for (const head of heads) {
    const [kind, text] = Array.isArray(head) ? head : ["", head];
    const cell = make("th", kind, text);
    cell.scope = "col";
    row.append(cell);
  }
  const body = make("tbody", "");
  if (id) body.id = id;
  const element = make("table", "", make("thead", "", row), body);
  element.setAttribute("aria-label", label);
  return element;
}

// unseen is a head that only screen readers read.
export const unseen = text => make("span", "unseen", text);

// row returns a row whose first cell is its head. A cell is a text, an element, or [kind, ...content].
export function row(...cells) {
  return make("tr", "", ...cellsOf(cells));
}

function cellsOf(cells) {
  return cells.map((content, i) => {
    const [kind, ...children] = Array.isArray(content) ? content : ["", content];
    const cell = make(i === 0 ? "th" : "td", kind, ...children);
    if (i === 0) cell.scope = "row";
    return cell;
  });
}

// refill sets the cells of a row if they have changed. If a button or link had the focus, its successor
// gets it.
export function refill(element, signature, ...cells) {
  const active = document.activeElement;
  const focused = element.contains(active) && (active.getAttribute("aria-label") || active.textContent);
  fill(element, signature, ...cellsOf(cells));
  if (!focused || element.contains(document.activeElement)) return;
  const successor = [...element.querySelectorAll("button, a, input")]
    .find(e => (e.getAttribute("aria-label") || e.textContent) === focused);
  (successor || $("main")).focus({ preventScroll: true });
}

// card returns a section with a heading. Extra elements stand beside the heading.
export function card(title, extra, ...children) {
  const head = make("header", "", make("h2", "", ...[].concat(title)), ...[].concat(extra || []));
  const element = make("section", "card block", head, ...children);
  element.setAttribute("aria-label", head.firstChild.textContent);
  return element;
}

// scroll makes a wide table scroll inside of its card.
export const scroll = (...children) => make("div", "scroll", ...children);

// drawFacts shows pairs of a label and a value.
export function drawFacts(element, signature, facts) {
  if (element.signature === signature) return; // a value that is an element stays in its place
  fill(element, signature, ...facts.map(([label, value]) => make("div", "", sub(label), make("strong", "", value))));
}

// drawTiles shows large numbers, each with a label, words below it, and a kind of color. head makes the label.
export function drawTiles(element, tiles, head = label => label) {
  keyed(element, tiles, t => t[0], t => make("div", "", make("dt", "", head(t[0])), make("dd"), make("dd")),
    (tile, [, number, words, kind]) => {
      setText(tile.children[1], number);
      setText(tile.children[2], words);
      tile.className = kind;
    });
}

export const mark = (text, kind = "") => make("span", "mark " + kind, plain(text));

// agoOf shows how long ago a time was. countOn has it go on.
export function agoOf(time) {
  const element = make("time", "ago", ago(time));
  element.dateTime = time;
  return element;
}

export function countOn() {
  for (const element of document.querySelectorAll(".ago")) setText(element, ago(element.dateTime));
}

export const sub = (...children) => make("div", "sub", ...children);
