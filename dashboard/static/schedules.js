// Schedules and jobs: the groups, which the polls return, and lists, which the page reads in pages of rows, again while they are visible.
"use strict";

const again = 5000; // milliseconds between two reads of a visible list
const most1000 = n => n > 1000 ? "1,000+" : count(n);

draws.groups = () => {
  const told = state.schedules, shown = told.groups.length > 0 || told.failure !== "";
  const was = $("schedules").hidden;
  $("schedules").hidden = $("schedules-link").hidden = !shown;
  setText($("groups-note"), told.failure ? "The schedules cannot be read: " + plain(told.failure) : told.groups.length === 100 ? "No more than the first 100 groups by name are shown." : "");
  keyed($("group-rows"), told.groups, g => g.name, g => {
    const head = make("th", "", name(g.name));
    head.scope = "row";
    return make("tr", "", head, ...["n", "n", "n", "n", "n", "n", "sub"].map(c => make("td", c)));
  }, (row, g) => {
    [g.schedules, g.late, g.blocked, g.paused, g.failing, g.jobs].forEach((n, i) => {
      setText(row.children[i + 1], most1000(n) + (i === 5 && g.stuck ? ", " + most1000(g.stuck) + " blocked" : ""));
      row.children[i + 1].classList.toggle("bad-text", n > 0 && (i === 1 || i === 4) || i === 5 && g.stuck > 0);
    });
    const since = g.outcomes[0]?.since;
    setText(row.children[7], g.outcomes.map(f => count(f.count) + " " + plain(f.outcome)).join(", ") + (since ? ", since " + clock(since) : "none"));
  });
  for (const l of [scheduleList, jobList]) {
    const names = told.groups.map(g => g.name), select = l.root.querySelector(".of"), now = names.includes(select.value) ? select.value : names[0] || "";
    fill(select, JSON.stringify([names, now]), ...names.map(n => {
      const option = make("option", "", plain(n));
      option.value = n;
      option.selected = n === now;
      return option;
    }));
  }
  if (was && shown) for (const l of [scheduleList, jobList]) look(l);
};

// A list: its element, its query, and how a row is drawn. pages has the first keys of the pages up to the current one.
function newList(root, query, keyOf, next, row) {
  const l = { root, query, keyOf, next, row, pages: [""], seen: false, turn: 0, timer: 0 };
  new IntersectionObserver(entries => {
    l.seen = entries.at(-1).isIntersecting;
    if (l.seen) look(l);
  }).observe(root);
  for (const e of root.querySelectorAll("select, input")) e.addEventListener("input", () => first(l));
  return l;
}

function first(l) {
  l.pages = [""];
  look(l);
}

// look reads a list, and again after a pause.
async function look(l) {
  clearTimeout(l.timer);
  if (l.root.hidden || $("schedules").hidden || document.hidden) return;
  const turn = ++l.turn, query = l.query();
  const answer = await get(l.root.dataset.path, { ...query, after: l.pages.at(-1) });
  if (turn !== l.turn) return; // another read has started
  const body = l.root.querySelector("tbody"), rows = answer.rows || [];
  if (answer.rows) keyed(body, rows, r => JSON.stringify([query, l.keyOf(r)]), () => make("tr"), l.row);
  setText(l.root.querySelector(".note"), answer.text ? "This cannot be read: " + plain(answer.text) : rows.length === 0 ? "The list is empty." :
    "Page " + count(l.pages.length) + (answer.more ? ", and there are more." : l.pages.length === 20 && rows.length === 50 ? ". No more than 1,000 are found." : "."));
  const turns = [];
  if (l.pages.length > 1) turns.push(["First page", () => first(l)]);
  if (answer.more) turns.push(["Next page", () => { l.pages.push(l.next(rows.at(-1))); look(l); }]);
  fill(l.root.querySelector(".pages"), JSON.stringify([l.pages, !!answer.more]), ...turns.flatMap(([text, turn]) => [button(text, turn), " "]));
  if (l.seen) l.timer = setTimeout(() => look(l), again);
}

function button(text, press, label) {
  const e = make("button", "act", text);
  e.type = "button";
  if (label) e.setAttribute("aria-label", label);
  e.addEventListener("click", press);
  return e;
}

// cells fills a row; its first cell is a heading. If a button had the focus, its successor gets it.
function cells(row, signature, ...content) {
  const focused = row.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
  fill(row, signature, ...content.map((c, i) => {
    const e = make(i === 0 ? "th" : "td", c.kind || "", ...c.content);
    if (i === 0) e.scope = "row";
    return e;
  }));
  if (focused && !row.contains(document.activeElement)) ([...row.querySelectorAll("button")].find(e => e.getAttribute("aria-label") === focused) || $("schedules")).focus({ preventScroll: true });
}
const cell = (kind, ...content) => ({ kind, content });

const lateText = ns => ns > 0 ? span(ns / 1e6) : "";
const isBad = s => s === "blocked" || s === "failed" || s === "unknown";
const mark = (text, kind) => make("span", "mark " + (kind ?? (isBad(text) ? "bad" : ["paused", "retrying"].includes(text) ? "warn" : "")), plain(text));
const brief = error => (error || "").split("\n")[0]; // of a panic, without its stack
const note = text => text ? make("div", "sub", name(text)) : "";

const scheduleList = newList($("schedule-list"), () => ({
  group: $("schedule-list").querySelector(".of").value, which: $("schedule-list").querySelector(".which").value, prefix: $("schedule-list").querySelector(".prefix").value,
}), s => s.id, s => s.name, (row, s) => {
  const group = $("schedule-list").querySelector(".of").value;
  const acts = [button("History", event => showHistory(group, s.name, event.target), "History of " + plain(s.name))];
  if (operating) acts.push(" ", operateButton({ kind: "schedule", subject: s.name, group, is: s, paused: s.state === "paused" || !!s.paused_at }));
  cells(row, JSON.stringify(s), cell("", name(s.name), make("div", "sub", name(s.rule), s.owner ? ", by " : "", s.owner ? name(s.owner) : "")),
    cell("", mark(s.state), s.failures ? make("span", "mark bad", count(s.failures) + " failed") : "", note(s.why), note(brief(s.error))),
    cell("nowrap", s.due ? clock(s.due) : ""), cell("nowrap", s.succeeded ? clock(s.succeeded) : "", s.last_outcome && s.last_outcome !== "succeeded" ? make("div", "", mark(s.last_outcome)) : ""),
    cell("n" + (s.late_ns > 60e9 ? " bad-text" : ""), lateText(s.late_ns)), cell("n", ...acts));
});

const jobList = newList($("job-list"), () => ({ group: $("job-list").querySelector(".of").value, which: $("job-list").querySelector(".which").value }), j => j.id, j => j.id, (row, j) => {
  const ended = j.outcome !== "", id = String(ended ? j.job : j.id), of = j.name || j.kind, group = $("job-list").querySelector(".of").value;
  const acts = !operating ? [] : !ended ? [operateButton({ kind: "job", subject: id, group, label: "job " + id }, "cancel_job")] :
    j.retried ? ["retried as " + j.retried] : [operateButton({ kind: "failed", subject: id, group, outcome: j.outcome, label: "job " + id }, "retry_job")];
  cells(row, JSON.stringify(j), cell("", id, make("div", "sub", name(j.kind))), cell("", mark(ended ? j.outcome : j.state), note(j.why), note(brief(j.error))),
    cell("nowrap", clock(ended ? j.until : j.at), !ended && j.started_at ? make("div", "sub", "running since " + clock(j.started_at)) : ""), cell("", name(of), j.owner ? make("div", "sub", "by ", name(j.owner)) : ""), cell("n", j.state === "running" ? "" : lateText(j.late_ns)), cell("n", ...acts));
});

let historyOf = { group: "", name: "" };
const historyList = newList($("history"), () => historyOf, h => h.id, h => h.id, (row, h) => {
  const acts = !operating || h.job || !isBad(h.outcome) ? [] : h.retried ? ["retried as " + h.retried] :
    [operateButton({ kind: "tick", subject: historyOf.name, group: historyOf.group, tick: h.until, outcome: h.outcome, label: plain(historyOf.name) + " at " + clock(h.until) }, "retry_tick")];
  cells(row, JSON.stringify(h), cell("nowrap", clock(h.until), h.job ? make("div", "sub", "job " + h.job) : ""),
    cell("", mark(h.outcome), h.ticks > 1 ? " " + many(h.ticks, "tick") : ""), cell("n", count(h.attempts)),
    cell("nowrap", h.started_at ? clock(h.started_at) : ""), cell("", note(brief(h.error))), cell("n", ...acts));
});

function showHistory(group, of, opener) {
  historyOf = { group, name: of };
  $("history-title").replaceChildren("History of ", name(of), " ", button("Close", () => {
    $("history").hidden = true;
    (opener.isConnected ? opener : $("schedules")).focus();
  }));
  $("history").hidden = false;
  first(historyList);
  $("history").focus();
}

document.addEventListener("visibilitychange", () => {
  for (const l of [scheduleList, jobList, historyList]) if (l.seen) look(l);
});
