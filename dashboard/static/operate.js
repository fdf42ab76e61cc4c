// The dialog in which an operator makes a change. For leases and clients it shows which partitions would move.
"use strict";

// The verbs: the kind of object, the explanation, and the verb that takes it back. Only verbs with lasts write overrides, which can have an end. Verbs with asks move no
// partitions, so they have no preview; shows describes the object instead.
const verbs = {
  drain: { of: "client", label: "Drain", back: "undrain", lasts: true, means: "It owns no partitions: its work ends, and others get its partitions. It stays a member. The override names the client's ID, and outlives restarts." },
  undrain: { of: "client", label: "Undrain", means: "It gets its share again." },
  cordon: { of: "client", label: "Cordon", back: "uncordon", lasts: true, means: "It gets no new partitions, and keeps its partitions until it restarts." },
  uncordon: { of: "client", label: "Uncordon", means: "It gets new partitions again." },
  evict: { of: "client", label: "Evict", danger: true, means: "Its sessions are revoked, even if it hangs. No heartbeat renews them, guards refuse them at once, and others take over within its TTL. Its process ends; a process that starts later is accepted. This cannot be undone." },
  pause: { of: "lease", label: "Pause", back: "resume", lasts: true, means: "The work on its partitions ends, and then they have no owner." },
  resume: { of: "lease", label: "Resume", means: "Its partitions get owners again." },
  freeze: { of: "lease", label: "Freeze", back: "unfreeze", lasts: true, means: "Its partitions stay in place, except those whose owner crashes, leaves or is drained. A client that joins gets only those." },
  unfreeze: { of: "lease", label: "Unfreeze", means: "Its shares become even again." },
  pin: { of: "lease", label: "Pin", back: "unpin", lasts: true, fields: ["partition", "client"], means: "The client owns the partition while it works on the lease; otherwise another client owns it." },
  unpin: { of: "lease", label: "Unpin", fields: ["partition"], means: "The partition counts in the shares again." },
  drop: { of: "lease", label: "Drop", danger: true, when: of => state.leases.find(l => l.name === of.subject)?.members.length === 0, means: "The lease is deleted. For 24 hours it can be created again only with the same number of partitions, unless pgleases drop --partitions sets another number. This cannot be undone." },
  pause_schedule: { of: "schedule", label: "Pause", asks: true, when: of => !of.paused, means: "It does not run until it is resumed. A run in progress continues." },
  resume_schedule: { of: "schedule", label: "Resume", asks: true, when: of => of.paused, fields: ["catch_up"], means: "It runs again at its next tick. The ticks that passed are canceled, or treated as late ticks." },
  trigger_schedule: { of: "schedule", label: "Trigger", asks: true, means: "It runs now, as a job, in addition to its ticks, even if it is paused." },
  backfill_schedule: { of: "schedule", label: "Backfill", asks: true, fields: ["after", "until"], means: "It runs again for ticks that have passed, at most 1,000, each as a job of the lowest priority." },
  delete_schedule: { of: "schedule", label: "Delete", asks: true, danger: true, shows: of => ["Deleted is ", name(of.subject), " of group ", name(of.group), ", of kind ", name(of.is.kind), ", by the rule ", name(of.is.rule), of.is.due ? ", due next at " + clock(of.is.due) : "", "."], means: "It is deleted, and ticks that have passed are canceled. Its history stays. A schedule that the code declares comes back with the next process that starts. This cannot be undone." },
  retry_tick: { of: "tick", label: "Retry", asks: true, means: "The schedule runs again for this tick, as a job. The tick keeps its outcome." },
  cancel_job: { of: "job", label: "Cancel", asks: true, means: "It does not run any more. The commit of a run in progress is refused; its effects outside of the database stay." },
  retry_job: { of: "failed", label: "Retry", asks: true, means: "It runs again, as a new job." },
};

const titles = { client: "Operate on client ", lease: "Operate on lease ", schedule: "Operate on schedule ", tick: "Operate on schedule ", job: "Operate on job ", failed: "Operate on job " };

// The fields of verbs: label, element and value. The value is a field of the change.
const fields = {
  partition(lease, chosen) {
    const e = make("input");
    Object.assign(e, { type: "number", min: "0", max: String(lease.partitions - 1), step: "1", required: true, value: String(Math.max(0, chosen ?? 0)) });
    return ["Partition", e, () => e.valueAsNumber];
  },
  client(lease) {
    const e = make("select");
    for (const id of new Set(lease.members.map(m => m.client))) {
      const option = make("option", "", plain(id));
      option.value = id;
      e.append(option);
    }
    return ["Client", e, () => e.value];
  },
  catch_up() {
    const e = make("input");
    e.type = "checkbox";
    return ["Treat the ticks that passed as late ticks", e, () => e.checked];
  },
  after: () => instantField("Ticks after"),
  until: () => instantField("Up to"),
};

// instantField returns a field for a time in this browser's zone.
function instantField(label) {
  const e = make("input");
  Object.assign(e, { type: "datetime-local", step: "1", required: true });
  return [label, e, () => new Date(e.value).toISOString()];
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

// post returns the content of the answer, and its kind: ok, or the reason why there is no content.
async function post(path, content, signal) {
  try {
    const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content), redirect: "manual", cache: "no-store", signal });
    const isJSON = (answer.headers.get("Content-Type") || "").startsWith("application/json"), told = isJSON ? await answer.json() : null;
    if (answer.ok && isJSON) return { kind: "ok", told };
    if (isJSON) return { kind: told.kind, text: told.text };
    if (denies(answer)) return { kind: "denied", text: "You may not do this any more. " + signIn };
    return { kind: answer.status >= 500 ? "unknown" : "failed", text: "The dashboard does not answer." };
  } catch (error) {
    return error.name === "AbortError" ? { kind: "stopped" } : { kind: "unknown", text: "The dashboard does not answer." };
  }
}

const standing = (verb, of) => state.overrides.some(w => w.verb === verb && (of.kind === "client" ? w.client === of.subject && w.partition === undefined : w.lease === of.subject));

// openDialog opens the dialog, with a verb chosen if one is given.
function openDialog(of, opener, verb) {
  Object.assign(operate, { turn: operate.turn + 1, of, opener, doing: false });
  $("operate-title").replaceChildren(titles[of.kind], name(of.subject));
  const taken = new Set(Object.values(verbs).map(v => v.back)); // these verbs need an override
  const offered = Object.keys(verbs).filter(v => verbs[v].of === of.kind && verbs[v].when?.(of) !== false && (!taken.has(v) || v === verb || Object.keys(verbs).some(w => verbs[w].back === v && standing(w, of))));
  $("operate-verbs").replaceChildren(...offered.map(v => {
    const e = make("input");
    Object.assign(e, { type: "radio", name: "verb", value: v, required: true, checked: v === verb });
    return make("label", "check", e, " " + verbs[v].label);
  }));
  $("operate-reason").value = "";
  $("operate-lasts").value = "";
  choose();
  $("operate").showModal();
  ($("operate-verbs").querySelector("input:checked") || $("operate-verbs").querySelector("input")).focus();
}

const chosenVerb = () => $("operate-verbs").querySelector("input:checked")?.value || "";

// choose shows the fields of the verb.
function choose() {
  const verb = chosenVerb(), v = verbs[verb], lease = state.leases.find(l => l.name === operate.of.subject);
  const warning = operate.of.outcome === "unknown" ? "Its outcome is unknown, so it may have been done: check its effect first, and retry it only if it was not done. " : "";
  setText($("operate-means"), v ? warning + v.means : "Choose a verb. You confirm the change before it is made.");
  operate.values = {};
  $("operate-fields").replaceChildren(...(v && (lease || v.asks) && v.fields || []).map(f => {
    const [label, e, value] = fields[f](lease, operate.of.partition);
    operate.values[f] = value;
    return e.type === "checkbox" ? make("label", "check", e, " " + label) : make("label", "", label + " ", e);
  }));
  $("operate-stands").hidden = !v?.lasts;
  $("operate-force").checked = false;
  $("operate-last").hidden = true;
  setText($("operate-go"), v ? v.label : "Confirm");
  $("operate-go").classList.toggle("danger", !!v?.danger);
  previewNow();
}

const failed = text => setText($("operate-failure"), text);

// wantedNow returns the change in the dialog.
function wantedNow() {
  const verb = chosenVerb(), of = operate.of, change = !verbs[verb].asks ? { verb, subject: of.subject, force: $("operate-force").checked } :
    of.kind === "schedule" || of.kind === "tick" ? { verb, group: of.group, schedule: of.subject, tick: of.tick } : { verb, group: of.group, job: of.subject };
  if (verb === "delete_schedule") change.id = String(of.is.id);
  for (const [field, value] of Object.entries(operate.values)) change[field] = value();
  if (verbs[verb].lasts) change.lasts = $("operate-lasts").value;
  return change;
}

function ready(previewed) {
  operate.previewed = previewed;
  $("operate-go").disabled = !previewed || operate.doing;
}

// previewNow previews the change in the dialog.
async function previewNow() {
  operate.busy?.abort();
  ready(null);
  failed("");
  if (!chosenVerb() || $("operate-fields").querySelector(":invalid")) {
    $("operate-preview").replaceChildren();
    return;
  }
  const busy = operate.busy = new AbortController(), change = wantedNow();
  if (verbs[change.verb].asks) {
    $("operate-preview").replaceChildren(...(verbs[change.verb].shows ? [make("p", "", ...verbs[change.verb].shows(operate.of))] : []));
    ready(change);
    return;
  }
  $("operate-preview").replaceChildren(make("p", "note", "Checking which partitions would move."));
  const answer = await post("preview", change, busy.signal);
  if (busy !== operate.busy || answer.kind === "stopped") return; // another one has started
  if (answer.kind === "ok") {
    showPreview(answer.told);
    ready(change);
    return;
  }
  $("operate-preview").replaceChildren(...(answer.kind === "last" ? [] : [againButton()]));
  $("operate-last").hidden = answer.kind !== "last";
  failed((answer.kind === "last" ? "" : "This cannot be previewed. ") + plain(answer.text));
}

const mostMoves = 50;

function showPreview(told) {
  const total = told.moves.reduce((n, m) => n + sizeOf(m.partitions), 0), lost = told.moves.filter(m => m.to === "").reduce((n, m) => n + sizeOf(m.partitions), 0);
  const askedOf = new Set(told.moves.filter(m => m.kind === "asked").map(m => m.from));
  const words = [told.forgets > 0 ? many(told.forgets, "partition") + " would be forgotten. Nobody works on the lease." : total === 0 ? "No partition would move." : many(total, "partition") + " would move."];
  if (askedOf.size > 0) words.push(many(askedOf.size, "owner is", "owners are") + " asked to hand over, and do so when their work has ended.");
  const lines = told.moves.slice(0, mostMoves).map(m => make("li", "", name(m.lease), " ", many(sizeOf(m.partitions), "partition"), " ", make("span", "sub", rangesText(m.partitions)),
    m.from ? " from " : " without an owner", m.from ? who(m.from) : "", " to ", m.to ? who(m.to) : make("span", "warn-text", "nobody"), ", ", m.kind));
  $("operate-preview").replaceChildren(make("p", "", words.join(" ")), ...(lost ? [make("p", "warn-text", many(lost, "partition") + " would have no owner.")] : []),
    ...(lines.length ? [make("ul", "", ...lines)] : []), ...(told.moves.length > mostMoves ? [make("p", "note", many(told.moves.length - mostMoves, "more line") + " not shown.")] : []));
}

// tellAll shows the outcome on the page, for screen readers too, even after the dialog has closed.
function tellAll(text, kind) {
  setText($("told"), clock(Date.now()) + ": " + text);
  $("told").dataset.kind = kind;
}

// execute makes the change in the dialog. The token lets the server recognize a repeated request: a browser repeats a POST if the connection ends.
async function execute() {
  if (!operate.previewed || operate.doing) return;
  const turn = operate.turn, verb = operate.previewed.verb, v = verbs[verb], what = v.label + " of " + plain(operate.of.label ?? operate.of.subject);
  operate.doing = true;
  $("operate-go").disabled = true;
  failed("");
  const answer = await post(v.asks ? "ask" : "apply", { ...operate.previewed, reason: $("operate-reason").value, token: [...crypto.getRandomValues(new Uint8Array(16))].join() });
  const open = operate.turn === turn && $("operate").open;
  if (open) operate.doing = false;
  if (answer.kind === "ok") {
    if (open) $("operate").close(); // screen readers do not read what is behind it
    tellAll(what + " is written down. " + (verb === "drop" ? "" : !v.asks ? "The clients act within a heartbeat; partitions move when the work on them has ended." : answer.told.job !== "0" ? "It is job " + answer.told.job + "." : verb === "backfill_schedule" ? many(answer.told.jobs, "job") + " created." : ""), "good");
    if (v.asks) for (const l of [scheduleList, jobList, historyList]) look(l);
    return;
  }
  const text = answer.kind === "changed" ? "Nothing was done: since the preview something has changed. " + plain(answer.text) :
    answer.kind === "unknown" ? "It is not known whether this was done: " + (v.asks ? "see the jobs and the history before you open this again. " : "see the overrides and the events. ") + plain(answer.text) :
    "Nothing was done. " + plain(answer.text);
  if (!open) {
    tellAll(what + ": " + text, "bad");
    return;
  }
  // The preview is no longer valid.
  failed(text);
  ready(null);
  if (v.asks) {
    if (answer.kind !== "unknown") ready(wantedNow()); // otherwise a second press may do it twice
    return;
  }
  const again = againButton();
  $("operate-preview").replaceChildren(again);
  again.focus();
}

function againButton() {
  return button("Preview again", () => {
    previewNow();
    $("operate-verbs").querySelector("input:checked").focus();
  });
}

function operateButton(of, verb) {
  const label = verb ? verbs[verb].label : "Operate";
  const e = make("button", "act", label);
  e.type = "button";
  e.setAttribute("aria-label", label + " " + plain(of.label ?? of.subject) + (verb && of.partition >= 0 ? ", partition " + of.partition : ""));
  e.setAttribute("aria-haspopup", "dialog");
  e.addEventListener("click", () => openDialog(of.card ? { ...of, partition: of.card.cursor } : of, e, verb));
  return e;
}

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
  (operate.opener?.isConnected ? operate.opener : $("leases")).focus();
});
