// The dialog in which an operator makes a change. It shows first what the change would do.

import { $, button, make, name, plain, setText } from "./dom.js";
import { leaseOf, post, readAgain } from "./state.js";
import { clock, count, many, rangesText, sizeOf } from "./words.js";
import { who } from "./owners.js";
import { offered, onOperate, verbs } from "./verbs.js";

const titles = {
  client: "Operate on client ", lease: "Operate on lease ", schedule: "Operate on schedule ",
  tick: "Operate on schedule ", job: "Operate on job ", failed: "Operate on job ",
  consumer: "Operate on consumer ", blocked: "Operate on rows of ", letters: "Operate on dead letters of ",
};

// The fields of verbs: label, element and value. The value is a field of the change.
const fields = {
  partition(lease, chosen) {
    const element = make("input");
    const most = String(lease.partitions - 1);
    Object.assign(element, { type: "number", min: "0", max: most, step: "1", required: true });
    element.value = String(Math.max(0, chosen ?? 0));
    return ["Partition", element, () => element.valueAsNumber];
  },
  client(lease) {
    const element = make("select");
    for (const id of new Set(lease.members.map(m => m.client))) {
      const option = make("option", "", plain(id));
      option.value = id;
      element.append(option);
    }
    return ["Client", element, () => element.value];
  },
  catch_up() {
    const element = make("input");
    element.type = "checkbox";
    return ["Treat the ticks that passed as late ticks", element, () => element.checked];
  },
  after: () => instantField("Ticks after"),
  until: () => instantField("Up to"),
};

// instantField returns a field for a time in this browser's zone.
function instantField(label) {
  const element = make("input");
  Object.assign(element, { type: "datetime-local", step: "1", required: true });
  return [label, element, () => new Date(element.value).toISOString()];
}

const operate = {
  turn: 0, // number of times that the dialog opened
  of: null, // the object: kind, subject, and for a lease the chosen partition
  values: {}, // the values of the fields
  previewed: null, // the previewed change; null: no preview is shown
  busy: null, // cancels the preview in progress
  doing: false, // a change is in progress
  opener: null,
};

// openDialog opens the dialog, with a verb chosen if one is given.
function openDialog(of, opener, verb) {
  Object.assign(operate, { turn: operate.turn + 1, of, opener, doing: false });
  $("operate-title").replaceChildren(titles[of.kind], name(of.subject));
  $("operate-verbs").replaceChildren(...offered(of, verb).map(v => {
    const choice = make("input");
    Object.assign(choice, { type: "radio", name: "verb", value: v, required: true, checked: v === verb });
    return make("label", "check", choice, " " + verbs[v].label);
  }));
  $("operate-reason").value = "";
  $("operate-lasts").value = "";
  choose();
  $("operate").showModal();
  (chosenChoice() || $("operate-verbs").querySelector("input")).focus();
}

const chosenChoice = () => $("operate-verbs").querySelector("input:checked");
const chosenVerb = () => chosenChoice()?.value || "";

// choose shows the fields of the verb.
function choose() {
  const verb = verbs[chosenVerb()];
  const lease = leaseOf(operate.of.subject);
  const unknown = operate.of.outcome === "unknown" ? "Its outcome is unknown, so it may have been done: " +
    "check its effect first, and retry it only if it was not done. " : "";
  const means = verb ? unknown + verb.means : "Choose a verb. You confirm the change before it is made.";
  setText($("operate-means"), means);
  operate.values = {};
  const shown = verb && (lease || !verb.moves) && verb.fields || [];
  $("operate-fields").replaceChildren(...shown.map(f => {
    const [label, element, value] = fields[f](lease, operate.of.partition);
    operate.values[f] = value;
    return element.type === "checkbox" ? make("label", "check", element, " " + label) :
      make("label", "", label + " ", element);
  }));
  $("operate-stands").hidden = !verb?.lasts;
  $("operate-force").checked = false;
  $("operate-last").hidden = true;
  setText($("operate-go"), verb ? verb.label : "Confirm");
  $("operate-go").classList.toggle("danger", !!verb?.danger);
  previewNow();
}

const failed = text => setText($("operate-failure"), text);

// wantedNow returns the change in the dialog.
function wantedNow() {
  const verb = chosenVerb();
  const change = changeOf(verb, operate.of);
  if (verb === "delete_schedule") change.id = String(operate.of.is.id);
  for (const [field, value] of Object.entries(operate.values)) change[field] = value();
  if (verbs[verb].lasts) change.lasts = $("operate-lasts").value;
  return change;
}

function changeOf(verb, of) {
  switch (verbs[verb].path) {
    case "apply":
      // What is pinned in a lease that was dropped has no field for its partition.
      return { verb, subject: of.subject, force: $("operate-force").checked,
        ...(verb === "unpin" ? { partition: of.partition } : {}) };
    case "handle":
      return { verb: verbs[verb].sends, consumer: of.subject, rows: (of.rows || []).map(id => ({ id })) };
  }
  const isSchedule = of.kind === "schedule" || of.kind === "tick";
  const object = isSchedule ? { schedule: of.subject, tick: of.tick } : { job: of.subject };
  return { verb, group: of.group, ...object };
}

function ready(previewed) {
  operate.previewed = previewed;
  $("operate-go").disabled = !previewed || operate.doing;
}

const showPreview = (...content) => $("operate-preview").replaceChildren(...content);

// previewNow previews the change in the dialog.
async function previewNow() {
  operate.busy?.abort();
  ready(null);
  failed("");
  const verb = verbs[chosenVerb()];
  if (!verb || $("operate-fields").querySelector(":invalid")) {
    showPreview();
    return;
  }
  const busy = operate.busy = new AbortController();
  const change = wantedNow();
  if (!verb.moves && !verb.rehearses) {
    showPreview(...(verb.shows ? [make("p", "", ...verb.shows(operate.of))] : []));
    ready(change);
    return;
  }
  showPreview(make("p", "note", verb.moves ? "Checking which partitions would move." : "Checking what would be done."));
  const sent = verb.moves ? change : { ...change, reason: "preview" };
  const answer = await post(verb.moves ? "preview" : "rehearse", sent, busy.signal);
  if (busy !== operate.busy || answer.kind === "stopped") return; // another one has started
  if (answer.kind === "ok") {
    const possible = verb.moves ? showMoves(answer.told) : showRows(verb, answer.told);
    ready(possible ? change : null);
    return;
  }
  showPreview(...(answer.kind === "last" ? [] : [againButton()]));
  $("operate-last").hidden = answer.kind !== "last";
  failed((answer.kind === "last" ? "" : "This cannot be previewed. ") + plain(answer.text));
}

const mostMoves = 50;

function showMoves(told) {
  const sum = moves => moves.reduce((n, m) => n + sizeOf(m.partitions), 0);
  const total = sum(told.moves);
  const lost = sum(told.moves.filter(m => m.to === ""));
  const asked = new Set(told.moves.filter(m => m.kind === "asked").map(m => m.from));
  const words = [
    told.forgets > 0 ? many(told.forgets, "partition") + " would be forgotten. Nobody works on the lease." :
      total === 0 ? "No partition would move." : many(total, "partition") + " would move.",
  ];
  if (asked.size > 0) {
    const owners = many(asked.size, "owner is", "owners are");
    words.push(owners + " asked to hand over, and do so when their work has ended.");
  }
  const content = [make("p", "", words.join(" "))];
  if (lost) content.push(make("p", "warn-text", many(lost, "partition") + " would have no owner."));
  if (told.moves.length > 0) content.push(make("ul", "", ...told.moves.slice(0, mostMoves).map(showMove)));
  const more = told.moves.length - mostMoves;
  if (more > 0) content.push(make("p", "note", many(more, "more line") + " not shown."));
  showPreview(...content);
  return true;
}

function showMove(m) {
  const partitions = make("span", "sub", rangesText(m.partitions));
  const from = m.from ? [" from ", who(m.from)] : [" without an owner"];
  const to = m.to ? who(m.to) : make("span", "warn-text", "nobody");
  return make("li", "", name(m.lease), " ", many(sizeOf(m.partitions), "partition"), " ", partitions, ...from,
    " to ", to, ", ", m.kind);
}

// showRows shows what a verb on a consumer would do, and returns whether it would do anything.
function showRows(verb, told) {
  const content = [];
  if (told.already) content.push(make("p", "", "Nothing would change: somebody has done that already."));
  const acts = { retry: "retried", skip: "skipped", return: "returned" }[verb.sends.replace("_all", "")];
  const number = many(verb.sends.endsWith("_all") ? told.all : told.rows.length, "row") + " would be " + acts;
  if (verb.sends.endsWith("_all")) content.push(make("p", "", number + "."));
  else if (acts) content.push(make("p", "", number + ": ", idsText(told.rows)));
  else if (!told.already) content.push(make("p", "", "The consumer would be " + verb.sends + "d."));
  if (told.gone.length > 0) {
    const gone = many(told.gone.length, "chosen row is", "chosen rows are") + " no longer there: ";
    content.push(make("p", "warn-text", gone, idsText(told.gone)));
  }
  showPreview(...content);
  return !told.already && (!acts || told.rows.length > 0 || told.all > 0);
}

function idsText(rows) {
  const ids = rows.slice(0, 20).map(r => r.id).join(", ");
  return make("span", "sub", ids + (rows.length > 20 ? " and " + count(rows.length - 20) + " more" : ""));
}

// tellAll shows the outcome on the page, for screen readers too, even after the dialog has closed.
function tellAll(text, kind) {
  setText($("told"), clock(Date.now()) + ": " + text);
  $("told").dataset.kind = kind;
}

// execute makes the change in the dialog. The token lets the server recognize a repeated request: a browser
// repeats a POST if the connection ends.
async function execute() {
  if (!operate.previewed || operate.doing) return;
  const turn = operate.turn;
  const chosen = chosenVerb(), verb = verbs[chosen];
  const what = verb.label + " of " + plain(operate.of.label ?? operate.of.subject);
  operate.doing = true;
  $("operate-go").disabled = true;
  failed("");
  const token = [...crypto.getRandomValues(new Uint8Array(16))].join();
  const answer = await post(verb.path, { ...operate.previewed, reason: $("operate-reason").value, token });
  const open = operate.turn === turn && $("operate").open;
  if (open) operate.doing = false;
  readAgain();
  if (answer.kind === "ok") {
    const [text, kind] = outcomeOf(verb, chosen, what, answer.told);
    if (open) $("operate").close(); // screen readers do not read what is behind it
    tellAll(text, kind);
    return;
  }
  const text = whyNot(verb, answer);
  if (!open) {
    tellAll(what + ": " + text, "bad");
    return;
  }
  // The preview is no longer valid.
  failed(text);
  ready(null);
  if (!verb.moves && !verb.rehearses) {
    if (answer.kind !== "unknown") ready(wantedNow()); // otherwise a second press may do it twice
    return;
  }
  const again = againButton();
  showPreview(again);
  again.focus();
}

function outcomeOf(verb, chosen, what, told) {
  const done = what + " is written down. ";
  switch (verb.path) {
    case "apply":
      return [done + (chosen === "drop" ? "" :
        "The clients act within a heartbeat; partitions move when the work on them has ended."), "good"];
    case "handle":
      if (told.failed.length === 0) return [done + (told.rows > 0 ? many(told.rows, "row") + "." : ""), "good"];
      return [what + ": " + many(told.rows, "row") + " done, " + count(told.failed.length) + " not: " +
        told.failed.slice(0, 5).map(f => f.id + ": " + plain(f.text)).join("; "), "bad"];
  }
  if (told.job !== "0") return [done + "It is job " + told.job + ".", "good"];
  return [done + (chosen === "backfill_schedule" ? many(told.jobs, "job") + " created." : ""), "good"];
}

function whyNot(verb, answer) {
  const text = plain(answer.text);
  switch (answer.kind) {
    case "changed":
      return "Nothing was done: since the preview something has changed. " + text;
    case "unknown": {
      const where = {
        apply: "see the overrides and the events. ",
        ask: "see the jobs and the history before you open this again. ",
        handle: "see the rows and the changes of the consumer before you try again. ",
      }[verb.path];
      return "It is not known whether this was done: " + where + text;
    }
  }
  return "Nothing was done. " + text;
}

function againButton() {
  return button("Preview again", () => {
    previewNow();
    chosenChoice().focus();
  });
}

onOperate(openDialog);
$("operate-verbs").addEventListener("change", choose);
for (const id of ["operate-fields", "operate-lasts", "operate-force"]) $(id).addEventListener("change", previewNow);
$("operate-cancel").addEventListener("click", () => $("operate").close());
$("operate-form").addEventListener("submit", event => {
  event.preventDefault();
  execute();
});
$("operate").addEventListener("close", () => {
  if ($("operate").open) return; // it was opened again meanwhile
  operate.busy?.abort();
  if (document.activeElement !== document.body) return; // the focus was moved meanwhile
  (operate.opener?.isConnected ? operate.opener : $("main")).focus();
});
