// Addresses. Each screen has one, with the thing that it shows, its filter and its period:
// leases/NAME/17, events?lease=NAME&since=1h.
//
// A name is one part of a path, in which ASCII other than letters, digits, "_", "." and "-" is written as
// "~" and two hexadecimal digits. So no proxy, which may decode "%2F" or remove "..", changes it.

import { make, plain } from "./dom.js";

// root is the path of the dashboard itself, under which an application has mounted it.
export const root = new URL("../", import.meta.url).pathname;

const coded = character => "~" + character.codePointAt(0).toString(16).toUpperCase().padStart(2, "0");

function encode(text) {
  const safe = text.replace(/[\x00-\x7f]/g, c => /[\w.-]/.test(c) ? c : coded(c));
  return encodeURI(/^\.+$/.test(safe) ? safe.replaceAll(".", coded) : safe);
}

function decode(part) {
  let text = part;
  try {
    text = decodeURIComponent(part);
  } catch {
    // somebody typed a "%"
  }
  return text.replace(/~([0-9A-Fa-f]{2})/g, (_, digits) => String.fromCharCode(parseInt(digits, 16)));
}

// addressOf returns an address. Of the query it leaves out what is empty.
export function addressOf(screen, names = [], query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const search = new URLSearchParams(given).toString();
  return root + [screen, ...names.map(encode)].join("/") + (search ? "?" + search : "");
}

// here returns the address of the page.
export function here() {
  const [screen, ...parts] = location.pathname.slice(root.length).split("/");
  return {
    screen: decode(screen),
    names: parts.filter(p => p !== "").map(decode),
    query: Object.fromEntries(new URLSearchParams(location.search)),
  };
}

// go shows another address. main.js listens for it.
export function go(address, replace = false) {
  if (address === location.pathname + location.search) return;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  dispatchEvent(new Event("gone"));
}

// alter changes the query of this address, without a step for the button Back. The screen stays.
export function alter(query) {
  const now = here();
  history.replaceState(null, "", addressOf(now.screen, now.names, { ...now.query, ...query }));
}

// link is a link to an address. The browser can open it in another tab.
export function link(address, ...children) {
  const element = make("a", "", ...children);
  element.href = address;
  return element;
}

addEventListener("click", event => {
  const element = event.target.closest?.("a[href]");
  const plainly = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  if (!element || !plainly || element.target || element.origin !== location.origin) return;
  if (element.getAttribute("href").startsWith("#") || !element.pathname.startsWith(root)) return;
  event.preventDefault();
  go(element.pathname + element.search);
});

// named is a text for a title: the things that an address names.
export const named = names => names.map(plain).join(" / ");
