// Periods of the past, as addresses hold them, and the axes of pictures of time.

import { make } from "./dom.js";
import { addressOf, here, link } from "./address.js";

const periods = [["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"]];

// periodOf returns the part of a query that is its period.
export function periodOf(query, usual = "1h") {
  if (query.from || query.to) {
    const period = {};
    for (const end of ["from", "to", "since"]) if (query[end]) period[end] = query[end];
    return period;
  }
  return { since: query.since || usual };
}

// pauseOf returns the time in ms after which a period is read again. That of a long one costs more.
export const pauseOf = period => period.since === "1h" && !period.from && !period.to ? 10_000 : 60_000;

// picker shows the usual periods as links that change only the period of this address.
export function picker(usual = "1h", offered = ["1h", "24h", "7d"]) {
  const now = here();
  const chosen = periodOf(now.query, usual);
  const element = make("div", "picker");
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", "Period");
  for (const [since, label] of periods.filter(([p]) => offered.includes(p))) {
    const choice = link(addressOf(now.screen, now.names, { ...now.query, since, from: "", to: "" }), label);
    if (chosen.since === since && !chosen.from) choice.setAttribute("aria-current", "true");
    element.append(choice);
  }
  if (chosen.from || chosen.to) {
    const [from, to] = [chosen.from, chosen.to].map(t => t ? shortTime(new Date(t)) : "now");
    element.append(make("span", "chosen", from + " to " + to));
  }
  return element;
}

const short = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" };
const shortTime = t => t.toLocaleString("en-GB", short);

const minute = 60e3, hour = 60 * minute, day = 24 * hour;
const distances = [
  minute, 2 * minute, 5 * minute, 10 * minute, 15 * minute, 30 * minute, hour, 2 * hour, 3 * hour, 6 * hour,
  12 * hour, day, 2 * day, 5 * day, 10 * day,
];

// ticks returns round local times between two times, at most a number of them, with their labels.
function ticks(since, until, most) {
  const distance = distances.find(d => (until - since) / d <= most) || distances.at(-1);
  const offset = new Date(since).getTimezoneOffset() * minute;
  const found = [];
  for (let t = Math.ceil((since - offset) / distance) * distance + offset; t < until; t += distance) {
    const at = new Date(t);
    const midnight = at.getHours() === 0 && at.getMinutes() === 0;
    const label = distance >= day || midnight ? at.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) :
      at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
    found.push({ at: t, label });
  }
  return found;
}

// axis shows round times below a picture of time.
export function axis(since, until) {
  const element = make("div", "axis");
  element.setAttribute("aria-hidden", "true");
  for (const { at, label } of ticks(since, until, 8)) {
    const text = make("span", "", label);
    text.style.left = ((at - since) / (until - since) * 100).toFixed(2) + "%";
    element.append(text);
  }
  return element;
}
