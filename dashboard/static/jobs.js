// The jobs of a group: those that have not ended, or those that failed.

import { make, mark, name, plain, refill, setText, sub, table, unseen } from "./dom.js";
import { addressOf, alter, go, here } from "./address.js";
import { state } from "./state.js";
import { clock, firstLine, ofNs } from "./words.js";
import { operateButtons } from "./verbs.js";
import { newList } from "./list.js";
import { kindOf, noted } from "./schedules.js";

const choices = [
  ["", "not ended"], ["due", "due"], ["running", "running"], ["blocked", "blocked"], ["failed", "failed or unknown"],
];

export function jobs({ names: [group] }) {
  const note = make("p", "note");
  const lists = make("div", "");
  const element = make("div", "", note, lists);
  let of = "";
  return {
    element,
    parts: ["schedules"],
    draw() {
      const groups = state.schedules?.groups || [];
      const wanted = group ?? groups[0]?.name ?? "";
      setText(note, wanted === "" && state.schedules ? "No process has run schedules or jobs in this database." : "");
      if (wanted === "" || wanted === of) return;
      of = wanted;
      lists.replaceChildren(newJobs(of, groups.map(g => g.name)));
    },
  };
}

function newJobs(group, groups) {
  const all = table("Jobs", ["Job", "State", "For", "Of", ["n", "Late"], unseen("Operate")]);
  const query = () => {
    const { state: which = "", kind, key } = here().query;
    return { group, which, ...(kind && { kind }), ...(key && { key }) };
  };
  const list = newList({
    path: "jobs", table: all, query, keyOf: j => j.id, next: j => j.id, empty: "There is no such job.",
    update: (element, j) => updateJob(element, j, group),
  });
  const which = choice("which", choices, here().query.state || "", () => {
    alter({ state: which.value });
    list.first();
  });
  const names = [...new Set([group, ...groups])].map(g => [g, g]);
  const of = choice("of", names, group, () => go(addressOf("jobs", [of.value], here().query)));
  let typing = 0;
  const field = (name, label) => {
    const input = make("input", "");
    Object.assign(input, { id: "job-" + name, type: "search", autocomplete: "off", spellcheck: false });
    input.value = here().query[name] || "";
    input.addEventListener("input", () => {
      alter({ [name]: input.value });
      clearTimeout(typing);
      typing = setTimeout(list.first, 300);
    });
    return make("label", "", label + " ", input);
  };
  const labels = [make("label", "", "Group ", of), make("label", "", "Show ", which)];
  const filters = make("div", "filters", ...labels, field("kind", "Kind"), field("key", "Key"));
  filters.setAttribute("role", "group");
  filters.setAttribute("aria-label", "Show only some jobs");
  const element = make("div", "", filters, list.element);
  element.id = "job-list";
  return element;
}

function choice(kind, options, value, change) {
  const select = make("select", kind);
  for (const [of, label] of options) {
    const option = make("option", "", plain(label));
    option.value = of;
    select.append(option);
  }
  select.value = value;
  select.addEventListener("input", change);
  return select;
}

function updateJob(element, j, group) {
  const ended = j.outcome !== "";
  const id = String(ended ? j.job : j.id);
  const of = { subject: id, group, label: "job " + id };
  const failed = { kind: "failed", ...of, outcome: j.outcome };
  const acts = !ended ? operateButtons({ kind: "job", ...of }, "cancel_job") :
    j.retried ? ["retried as " + j.retried] : operateButtons(failed, "retry_job");
  const since = !ended && j.started_at ? sub("running since " + clock(j.started_at)) : "";
  const shown = ended ? j.outcome : j.state;
  refill(element, JSON.stringify(j),
    ["", id, sub(name(j.kind))],
    ["", mark(shown, kindOf(shown)), noted(j.why), noted(firstLine(j.error))],
    ["nowrap", clock(ended ? j.until : j.at), since],
    ["", name(j.name || j.kind), j.owner ? sub("by ", name(j.owner)) : ""],
    ["n", j.state === "running" ? "" : ofNs(j.late_ns)],
    ["n", ...acts]);
}
