// The groups of schedules, and the schedules of a group, those that fail first.

import { agoOf, keyed, make, mark, name, plain, refill, row, setText, sub, table, unseen } from "./dom.js";
import { addressOf, alter, here, link } from "./address.js";
import { state } from "./state.js";
import { clock, count, firstLine, isTime, most1000, ofNs } from "./words.js";
import { operateButtons } from "./verbs.js";
import { newList } from "./list.js";

const states = [["", "all"], ["failing", "failing"], ["late", "late"], ["blocked", "blocked"], ["paused", "paused"]];

// kindOf returns the kind of color of a state or an outcome.
export function kindOf(text) {
  if (["blocked", "failed", "unknown"].includes(text)) return "bad";
  if (["paused", "retrying", "skipped", "missed"].includes(text)) return "warn";
  return text === "succeeded" ? "good" : "";
}

export function schedules({ names: [group] }) {
  const groups = newGroups(group);
  const note = make("p", "note");
  const lists = make("div", "");
  const element = make("div", "", groups.element, note, lists);
  let of = "";
  return {
    element,
    parts: ["schedules"],
    draw() {
      const told = state.schedules;
      if (!told) return;
      groups.update(told.groups);
      const none = told.groups.length === 0 && !told.failure;
      setText(note, told.failure ? "The schedules cannot be read: " + plain(told.failure) :
        none ? "No process has run schedules or jobs in this database." :
          told.groups.length === 100 ? "No more than the first 100 groups by name are shown." : "");
      const wanted = group ?? told.groups[0]?.name ?? "";
      if (wanted === "" || wanted === of) return;
      of = wanted;
      const fails = told.groups.find(g => g.name === of)?.failing > 0 && !here().query.state && !here().query.prefix;
      const all = newSchedules(of, null, ["Schedules of ", name(of)], "schedule-list");
      lists.replaceChildren(all);
      if (fails) all.before(newSchedules(of, "failing", ["Failing schedules of ", name(of)], "failing-list"));
    },
  };
}

function newGroups(chosen) {
  const heads = [
    "Group", ["n", "Schedules"], ["n", "Failing"], ["n", "Late"], ["n", "Blocked"], ["n", "Paused"], ["n", "Jobs"],
    "Outcomes of the last hours",
  ];
  const all = table("Groups of schedules", heads, "group-rows");
  const element = make("div", "card scroll", all);
  const badness = g => g.failing > 0 ? 0 : g.late > 0 || g.blocked > 0 || g.stuck > 0 ? 1 : 2;
  return {
    element,
    update(groups) {
      element.hidden = groups.length === 0;
      const ranked = groups.toSorted((a, b) => badness(a) - badness(b));
      keyed(all.tBodies[0], ranked, g => g.name, () => row(),
        (element, g) => updateGroup(element, g, g.name === chosen));
    },
  };
}

function updateGroup(element, g, chosen) {
  const bad = (n, is = n > 0) => ["n" + (is ? " bad-text" : ""), most1000(n)];
  const since = g.outcomes[0]?.since;
  const outcomes = g.outcomes.map(f => count(f.count) + " " + plain(f.outcome)).join(", ");
  const jobs = most1000(g.jobs) + (g.stuck ? ", " + most1000(g.stuck) + " blocked" : "");
  element.classList.toggle("chosen", chosen);
  refill(element, JSON.stringify(g),
    link(addressOf("schedules", [g.name]), name(g.name)), ["n", most1000(g.schedules)], bad(g.failing), bad(g.late),
    bad(g.blocked), ["n", most1000(g.paused)],
    ["n" + (g.stuck > 0 ? " bad-text" : ""), link(addressOf("jobs", [g.name]), jobs)],
    ["sub", outcomes + (since ? ", since " + clock(since) : "none")]);
}

// newSchedules shows the schedules of a group: those in one state, or those that the filter of the address chooses.
function newSchedules(group, only, title, id) {
  const heads = ["Schedule", "State", "Last success", "Next", ["n", "Late"], unseen("Operate")];
  const all = table("Schedules", heads);
  const query = () => {
    const { state = "", prefix = "" } = here().query;
    return only ? { group, which: only, prefix: "" } : { group, which: state, prefix };
  };
  const which = make("select", "which");
  for (const [value, label] of states) {
    const option = make("option", "", label);
    option.value = value;
    which.append(option);
  }
  which.value = here().query.state || "";
  const prefix = make("input", "prefix");
  Object.assign(prefix, { type: "search", autocomplete: "off", spellcheck: false, value: here().query.prefix || "" });
  const list = newList({
    path: "schedules", table: all, query, keyOf: s => s.id, next: s => s.name,
    update: (element, s) => updateSchedule(element, s, group),
  });
  which.addEventListener("input", () => {
    alter({ state: which.value });
    list.first();
  });
  prefix.addEventListener("input", () => {
    alter({ prefix: prefix.value });
    list.first();
  });
  const labels = [make("label", "", "Show ", which), make("label", "", "Names that begin with ", prefix)];
  const filters = make("div", "filters", ...labels);
  filters.setAttribute("role", "group");
  filters.setAttribute("aria-label", "Show only some schedules");
  const head = make("header", "above", make("h2", "", ...title), ...(only ? [] : [filters]));
  const element = make("div", "", head, list.element);
  element.id = id;
  return element;
}

function updateSchedule(element, s, group) {
  const paused = s.state === "paused" || isTime(s.paused_at);
  const failed = s.last_outcome && s.last_outcome !== "succeeded";
  const last = failed ? sub("last tick ", mark(s.last_outcome, kindOf(s.last_outcome))) : "";
  const rule = sub(name(s.rule), s.owner ? ", by " : "", s.owner ? name(s.owner) : "");
  const failures = s.failures ? mark(count(s.failures) + " failed", "bad") : "";
  const succeeded = isTime(s.succeeded) ? [clock(s.succeeded), sub(agoOf(s.succeeded))] : ["never"];
  refill(element, JSON.stringify(s),
    ["", link(addressOf("schedules", [group, s.name]), name(s.name)), rule],
    ["", mark(s.state, kindOf(s.state)), failures, noted(s.why), noted(firstLine(s.error))],
    ["nowrap", ...succeeded, last],
    ["nowrap", isTime(s.due) ? clock(s.due) : ""],
    ["n" + (s.late_ns > 60e9 ? " bad-text" : ""), ofNs(s.late_ns)],
    ["n", ...operateButtons({ kind: "schedule", subject: s.name, group, is: s, paused })]);
}

export const noted = text => text ? sub(name(text)) : "";
