// One schedule: its state and why, its last ticks as bars, its next ticks, and its last error.

import { agoOf, card, drawFacts, fill, keyed, make, mark, name, plain, refill, setText, table, unseen } from "./dom.js";
import { addressOf, link } from "./address.js";
import { reading, slotOf } from "./state.js";
import { clock, count, isTime, many, span } from "./words.js";
import { who } from "./owners.js";
import { operateButtons } from "./verbs.js";
import { newList } from "./list.js";
import { kindOf, noted } from "./schedules.js";
import { drawCalendar } from "./calendar.js";
import { eventItem } from "./event.js";

export function schedule({ names: [group, of] }) {
  const failure = make("p", "failure");
  const facts = make("div", "facts-list");
  const acts = make("span", "acts");
  const error = make("pre", "error");
  const now = card("Now", acts, failure, facts, error);
  const bars = make("div", "");
  const next = make("ol", "next");
  const past = make("div", "");
  const pair = make("div", "pair", card("Last ticks", null, bars), card("Next ticks", null, next));
  const days = make("div", "");
  const element = make("div", "", now, pair, card("Last 30 days", null, days), newChanges(group, of), past);
  reading("calendar", () => ({ group, name: of }), 30_000, told => drawCalendar(days, told));
  reading("schedule", () => ({ group, name: of }), 5000, told => {
    setText(failure, told.text ? plain(told.text) : "");
    if (told.text) return;
    const s = told.schedule;
    const paused = s.state === "paused" || isTime(s.paused_at);
    const operated = { kind: "schedule", subject: of, group, is: s, paused };
    fill(acts, JSON.stringify([s.id, paused]), ...operateButtons(operated));
    drawNow(facts, told, group);
    error.hidden = !s.error;
    setText(error, s.error ? plain(s.error).replaceAll("\\n", "\n").replaceAll("\\t", "  ") : "");
    drawBars(bars, told.ticks);
    drawNext(next, told.next, paused);
  });
  past.append(newHistory(group, of));
  return { element, parts: [], draw() {} };
}

function drawNext(element, ticks, paused) {
  const lines = ticks.map(t =>
    make("li", "", make("strong", "", clock(t.at)), make("span", "sub", " " + t.local + " in the zone of its rule")));
  const none = make("li", "sub", paused ? "None while it is paused." : "None.");
  fill(element, JSON.stringify([ticks, paused]), ...(lines.length > 0 ? lines : [none]));
}

function drawNow(element, told, group) {
  const s = told.schedule;
  const at = (time, kind) => make("span", kind, clock(time) + ", ", agoOf(time));
  const failed = s.failures ? mark(count(s.failures) + " failed in a row", "bad") : "";
  const never = make("span", "warn-text", "never");
  const succeeded = isTime(s.succeeded) ? at(s.succeeded, "") : never;
  const facts = [
    ["State", make("span", "", mark(s.state, kindOf(s.state)), failed)],
    ["Why", s.why ? name(s.why) : ""],
    ["Failing since", isTime(told.failing_since) ? at(told.failing_since, "bad-text") : ""],
    ["Last success", succeeded],
    ["Running since", isTime(s.started_at) ? clock(s.started_at) : ""],
    ["Late", s.late_ns > 0 ? span(s.late_ns / 1e6) : ""],
    ["Failed attempts at this tick", s.attempts ? count(s.attempts) : ""],
    ["Rule", name(s.rule)],
    ["Kind", name(s.kind)],
    ["Key", name(s.key)],
    ["Owner", s.owner ? who(s.owner) : make("span", "warn-text", "no owner")],
    ["Partition", link(addressOf("leases", ["schedule/" + group, String(s.partition)]), count(s.partition))],
  ];
  const shown = facts.filter(([, value]) => value !== "");
  drawFacts(element, JSON.stringify([s, told.failing_since, slotOf(s.owner)]), shown);
}

// ---- The bars: each is a tick, or ticks that passed together. The height is how long it took.

const tall = 96;

function drawBars(element, ticks) {
  const shown = ticks.toReversed();
  const took = t => isTime(t.started_at) ? Math.max(0, new Date(t.ended_at) - new Date(t.started_at)) : 0;
  const most = Math.max(...shown.map(took), 1);
  const hint = "The highest took " + span(most) + ". Point at a bar, or use the arrow keys.";
  const note = make("p", "cell", shown.length === 0 ? "It has had no tick yet." : hint);
  const bars = shown.map(t => {
    const bar = make("span", "tick " + (kindOf(t.outcome) || "quiet"));
    bar.style.height = Math.max(4, Math.round(took(t) / most * tall)) + "px";
    return bar;
  });
  const place = make("div", "ticks", ...bars);
  place.tabIndex = 0;
  place.setAttribute("role", "slider");
  place.setAttribute("aria-label", "The last ticks: use the arrow keys");
  place.setAttribute("aria-valuemin", "0");
  place.setAttribute("aria-valuemax", String(Math.max(0, shown.length - 1)));
  let now = -1;
  const set = at => {
    bars[now]?.classList.remove("shown");
    now = at;
    bars[now]?.classList.add("shown");
    const t = shown[now];
    if (t) setText(note, describe(t, took(t)));
    place.setAttribute("aria-valuenow", String(Math.max(0, now)));
    place.setAttribute("aria-valuetext", t ? describe(t, took(t)) : "none is chosen");
  };
  set(-1);
  place.addEventListener("pointermove", event => {
    const at = bars.indexOf(event.target);
    if (at >= 0) set(at);
  });
  place.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = shown.length - 1;
    const from = now < 0 ? last + 1 : now;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    set(Math.min(last, Math.max(0, to)));
  });
  if (element.querySelector(":hover, :focus")) return; // somebody looks at it
  fill(element, JSON.stringify(ticks.map(t => t.id)), place, note);
}

function describe(tick, took) {
  const error = tick.error ? ": " + plain(tick.error.split("\n")[0]) : "";
  const long = isTime(tick.started_at) ? ", took " + span(took) : "";
  const attempts = tick.attempts > 1 ? ", " + count(tick.attempts) + " attempts" : "";
  const number = tick.ticks > 1 ? ", " + many(tick.ticks, "tick") : "";
  return clock(tick.until) + ": " + tick.outcome + long + attempts + number + error;
}

// ---- What operators did to it.

function newChanges(group, of) {
  const list = make("ol", "events");
  list.id = "change-list";
  const note = make("p", "note");
  const lease = "schedule/" + group;
  reading("happened", () => ({ lease, name: of, since: "30d" }), 5000, told => {
    const events = told.events || [];
    list.hidden = events.length === 0;
    keyed(list, events.slice(0, 100), e => e.id, e => eventItem(e, undefined, lease), () => {});
    setText(note, told.text ? plain(told.text) : events.length > 100 ? "The latest 100 of 30 days." :
      events.length === 0 ? "No operator has changed it in the last 30 days." : "");
  });
  return card("Changes by operators", null, list, note);
}

// ---- The history.

function newHistory(group, of) {
  const heads = ["Tick", "Outcome", ["n", "Took"], ["n", "Attempts"], "Error", unseen("Operate")];
  const list = newList({
    path: "history", table: table("History of " + plain(of), heads), query: () => ({ group, name: of }),
    keyOf: h => h.id, next: h => h.id, empty: "The history is empty.",
    update: (element, h) => {
      const label = plain(of) + " at " + clock(h.until);
      const retry = { kind: "tick", subject: of, group, tick: h.until, outcome: h.outcome, label };
      const acts = h.job || kindOf(h.outcome) !== "bad" ? [] :
        h.retried ? ["retried as " + h.retried] : operateButtons(retry, "retry_tick");
      const took = isTime(h.started_at) ? span(new Date(h.ended_at) - new Date(h.started_at)) : "";
      refill(element, JSON.stringify(h),
        ["nowrap", clock(h.until), h.job ? make("div", "sub", "job " + h.job) : ""],
        ["", mark(h.outcome, kindOf(h.outcome)), h.ticks > 1 ? " " + many(h.ticks, "tick") : ""],
        ["n", took], ["n", count(h.attempts)], ["", noted(h.error.split("\n")[0])], ["n", ...acts]);
    },
  });
  const element = make("div", "", make("header", "above", make("h2", "", "History")), list.element);
  element.id = "history";
  return element;
}
