// The calendar of a schedule: a cell for each of its last 30 days, in the color of the worst outcome of its ticks. With
// the keyboard it is a slider over the days. The same numbers are in a table.

import { fill, make, plain, row, scroll, setText, table } from "./dom.js";
import { kindOf } from "./schedules.js";
import { count } from "./words.js";

const days = 30;
const outcomes = ["failed", "unknown", "missed", "skipped", "canceled", "succeeded"]; // the worst first
const ranks = ["bad", "warn", "quiet", "good"]; // kinds of color, the worst first

// drawCalendar shows the ticks that the server has counted in steps, or why it could not.
export function drawCalendar(element, told) {
  if (element.querySelector(".calendar:hover, .calendar:focus, details[open]")) return; // somebody looks at it
  if (told.text) {
    fill(element, told.text, make("p", "note", "The calendar cannot be read: " + plain(told.text)));
    return;
  }
  const all = daysOf(told);
  const cells = all.map(day => {
    const worst = day.total === 0 ? "" : kindOfDay(day);
    const bad = day.counts.get("failed") || day.counts.get("unknown") ? "✕" : "";
    const swatch = make("span", "swatch " + (day.isKnown ? worst : "unknown"), bad);
    return make("span", "day", swatch, make("span", "date", String(day.at.getDate())));
  });
  const place = make("div", "calendar", ...cells);
  const note = make("p", "cell", "Point at a day, or use the arrow keys.");
  slider(place, cells, all, note);
  fill(element, JSON.stringify([told.bars, all[0].at]), place, note, tableOf(all));
}

// daysOf returns the last days, the last of them today, with the ticks of each by outcome.
function daysOf(told) {
  const today = new Date(told.until);
  today.setHours(0, 0, 0, 0);
  const known = new Date(told.from);
  const all = Array.from({ length: days }, (_, i) => {
    const at = new Date(today);
    at.setDate(at.getDate() - days + 1 + i); // also over a change of the clock
    const end = new Date(at);
    end.setDate(end.getDate() + 1);
    return { at, end, counts: new Map(), total: 0, isKnown: end > known };
  });
  for (const { at, what, count: n } of told.bars) {
    const day = all.find(d => d.at <= at * 1000 && at * 1000 < d.end);
    if (!day) continue;
    day.counts.set(what, (day.counts.get(what) || 0) + n);
    day.total += n;
  }
  return all;
}

function kindOfDay(day) {
  const kinds = [...day.counts.keys()].map(what => kindOf(what) || "quiet");
  return ranks.find(kind => kinds.includes(kind)) || "quiet";
}

const nameOf = at => at.toLocaleDateString("en-GB", { weekday: "short", day: "numeric", month: "short" });

function describe(day) {
  const words = outcomes.filter(o => day.counts.get(o)).map(o => count(day.counts.get(o)) + " " + o);
  const none = day.isKnown ? "no tick" : "not known, because only the latest ticks are counted";
  return nameOf(day.at) + ": " + (words.join(", ") || none);
}

function slider(place, cells, all, note) {
  let now = -1;
  place.tabIndex = 0;
  place.setAttribute("role", "slider");
  place.setAttribute("aria-label", "The last 30 days: use the arrow keys");
  place.setAttribute("aria-valuemin", "0");
  place.setAttribute("aria-valuemax", String(days - 1));
  const set = at => {
    cells[now]?.classList.remove("shown");
    now = at;
    cells[now]?.classList.add("shown");
    const text = all[now] ? describe(all[now]) : "none is chosen";
    if (all[now]) setText(note, text);
    place.setAttribute("aria-valuenow", String(Math.max(0, now)));
    place.setAttribute("aria-valuetext", text);
  };
  set(-1);
  place.addEventListener("pointermove", event => {
    const at = cells.indexOf(event.target.closest(".day"));
    if (at >= 0) set(at);
  });
  place.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const from = now < 0 ? days : now;
    const to = {
      ArrowLeft: from - 1, ArrowRight: from + 1, ArrowUp: from - 7, ArrowDown: from + 7, Home: 0, End: days - 1,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    set(Math.min(days - 1, Math.max(0, to)));
  });
}

function tableOf(all) {
  const details = make("details", "numbers", make("summary", "", "The days as a table"));
  const shown = outcomes.filter(o => all.some(day => day.counts.get(o)));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const numbers = table("Ticks of the last 30 days", ["Day", ...shown.map(o => ["n", o])]);
    for (const day of all) {
      const cells = shown.map(o => ["n", day.isKnown ? count(day.counts.get(o) || 0) : "not known"]);
      numbers.tBodies[0].append(row(nameOf(day.at), ...cells));
    }
    details.append(scroll(numbers));
  });
  details.hidden = shown.length === 0;
  return details;
}
