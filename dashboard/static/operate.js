// The dialog in which an operator says what is wanted: of leases it shows what would move, and has the server do that and nothing else.
"use strict";

// The verbs: what each is about, what it means, and which one takes it back. Those without lasts do not stand, so they cannot end by themselves. Those with asks move
// nothing, so there is nothing to preview; shows is what one of them is about.
const verbs = {
  drain: { of: "client", label: "Drain", back: "undrain", lasts: true, means: "It shall own nothing: its work ends, and others get its partitions. It stays a member. The override names the client's ID, and outlives restarts." },
  undrain: { of: "client", label: "Undrain", means: "It gets its share again." },
  cordon: { of: "client", label: "Cordon", back: "uncordon", lasts: true, means: "It gets nothing new, and keeps what it has as long as it does not restart." },
  uncordon: { of: "client", label: "Uncordon", means: "It gets new partitions again." },
  evict: { of: "client", label: "Evict", danger: true, means: "Its sessions are revoked, also where it hangs. No heartbeat renews them, guards refuse them at once, and others take over within its TTL. Its process ends; one that starts later is let in. This cannot be taken back." },
  pause: { of: "lease", label: "Pause", back: "resume", lasts: true, means: "Nobody shall own it: the work on its partitions ends, and then they have no owner." },
  resume: { of: "lease", label: "Resume", means: "Its partitions get owners again." },
  freeze: { of: "lease", label: "Freeze", back: "unfreeze", lasts: true, means: "Its partitions stay where they are, but for those whose owner crashes, leaves or is drained. Who joins gets nothing else." },
  unfreeze: { of: "lease", label: "Unfreeze", means: "Its shares become even again." },
  pin: { of: "lease", label: "Pin", back: "unpin", lasts: true, fields: ["partition", "client"], means: "A partition shall be with a client whenever that works on the lease, and with another where it does not." },
  unpin: { of: "lease", label: "Unpin", fields: ["partition"], means: "The partition counts in the shares again." },
  drop: { of: "lease", label: "Drop", danger: true, when: of => state.leases.find(l => l.name === of.subject)?.members.length === 0, means: "It is forgotten. For 24 hours it can be made again with as many partitions only, unless pgleases drop --partitions says otherwise. This cannot be taken back." },
  pause_schedule: { of: "schedule", label: "Pause", asks: true, when: of => !of.paused, means: "It does not run until it is resumed. A run that is under way goes on." },
  resume_schedule: { of: "schedule", label: "Resume", asks: true, when: of => of.paused, fields: ["catch_up"], means: "It runs again, with its next tick. The ticks that passed are canceled, or treated as late ones." },
  trigger_schedule: { of: "schedule", label: "Trigger", asks: true, means: "It runs now, besides its ticks, also where it is paused: as a job." },
  backfill_schedule: { of: "schedule", label: "Backfill", asks: true, fields: ["after", "until"], means: "It runs once more for ticks that have passed, 1,000 at most: each as a job of the lowest priority." },
  delete_schedule: { of: "schedule", label: "Delete", asks: true, danger: true, shows: of => ["Deleted is ", name(of.subject), " of group ", name(of.group), ", of kind ", name(of.is.kind), ", by the rule ", name(of.is.rule), of.is.due ? ", due next at " + clock(of.is.due) : "", "."], means: "It is deleted, and ticks that have passed are canceled. Its history stays. One that the code declares comes back with the next process that starts. Once done, this cannot be taken back." },
  retry_tick: { of: "tick", label: "Retry", asks: true, means: "The schedule runs once more for this tick, as a job. The tick keeps its outcome." },
  cancel_job: { of: "job", label: "Cancel", asks: true, means: "It does not run any more. A run that is under way is refused its commit; what it has done outside of the database is done." },
  retry_job: { of: "failed", label: "Retry", asks: true, means: "It runs once more, as a new job." },
};

const titles = { client: "Operate on client ", lease: "Operate on lease ", schedule: "Operate on schedule ", tick: "Operate on schedule ", job: "Operate on job ", failed: "Operate on job " };

// What each field of a verb is made of. The value of a field is that of the change.
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
    return ["The ticks that passed are late ones", e, () => e.checked];
  },
  after: () => instantField("Ticks after"),
  until: () => instantField("Up to"),
};

// instantField is a time by this browser's clock and zone.
function instantField(label) {
  const e = make("input");
  Object.assign(e, { type: "datetime-local", step: "1", required: true });
  return [label, e, () => new Date(e.value).toISOString()];
}

const operate = {
  turn: 0, // rises each time that the dialog opens
  of: null, // what it is about: kind, subject, and of a lease the partition that is chosen
  values: {}, // what the fields of the verb say
  previewed: null, // the change that was previewed, with its fingerprint; null: what is shown is none
  busy: null, // cancels the preview under way
  doing: false, // a change is under way
  opener: null,
};

// post returns the answer's content, and its kind: ok, or why there is none.
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

// openDialog opens the dialog. With a verb it begins with that one.
function openDialog(of, opener, verb) {
  Object.assign(operate, { turn: operate.turn + 1, of, opener, doing: false });
  $("operate-title").replaceChildren(titles[of.kind], name(of.subject));
  const taken = new Set(Object.values(verbs).map(v => v.back)); // and so they need an override that stands
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

// choose shows what belongs to the verb.
function choose() {
  const verb = chosenVerb(), v = verbs[verb], lease = state.leases.find(l => l.name === operate.of.subject);
  setText($("operate-means"), v ? v.means : "Choose what is wanted. Nothing is changed before you confirm it.");
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

// wantedNow is the change that the dialog says.
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

// previewNow previews what the dialog says.
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
  $("operate-preview").replaceChildren(make("p", "note", "Looking what would move."));
  const answer = await post("preview", change, busy.signal);
  if (busy !== operate.busy || answer.kind === "stopped") return; // another came after it
  if (answer.kind === "ok") {
    showPreview(answer.told);
    ready({ ...change, if_unchanged: answer.told.fingerprint });
    return;
  }
  $("operate-preview").replaceChildren(...(answer.kind === "last" ? [] : [againButton()]));
  $("operate-last").hidden = answer.kind !== "last";
  failed((answer.kind === "last" ? "It is the last that works on a lease: the partitions would have no owner. " : "This cannot be previewed. ") + plain(answer.text));
}

const mostMoves = 50;

function showPreview(told) {
  const total = told.moves.reduce((n, m) => n + sizeOf(m.partitions), 0), lost = told.moves.filter(m => m.to === "").reduce((n, m) => n + sizeOf(m.partitions), 0);
  const askedOf = new Set(told.moves.filter(m => m.kind === "asked").map(m => m.from));
  const words = [told.forgets > 0 ? many(told.forgets, "partition") + " would be forgotten. Nobody works on the lease." : total === 0 ? "No partition would move." : many(total, "partition") + " would move."];
  if (askedOf.size > 0) words.push(many(askedOf.size, "owner is", "owners are") + " asked to hand over, which they do when their work has ended.");
  const lines = told.moves.slice(0, mostMoves).map(m => make("li", "", name(m.lease), " ", many(sizeOf(m.partitions), "partition"), " ", make("span", "sub", rangesText(m.partitions)),
    m.from ? " from " : " from nobody", m.from ? who(m.from) : "", " to ", m.to ? who(m.to) : make("span", "warn-text", "nobody"), ", ", m.kind));
  $("operate-preview").replaceChildren(make("p", "", words.join(" ")), ...(lost ? [make("p", "warn-text", many(lost, "partition") + " would have no owner.")] : []),
    ...(lines.length ? [make("ul", "", ...lines)] : []), ...(told.moves.length > mostMoves ? [make("p", "note", many(told.moves.length - mostMoves, "more line") + " not shown.")] : []));
}

// tellAll says what came of it, to who sees and who hears, also when the dialog has gone.
function tellAll(text, kind) {
  setText($("told"), clock(Date.now()) + ": " + text);
  $("told").dataset.kind = kind;
}

// execute has done what the dialog says. The token tells the server one press from another: a browser sends a POST again by itself where a connection ends.
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
    if (open) $("operate").close(); // what is behind it is not heard
    tellAll(what + " is written down. " + (verb === "drop" ? "" : !v.asks ? "The clients do it within a heartbeat, and when the work on what moves has ended." : answer.told.job !== "0" ? "It is job " + answer.told.job + "." : verb === "backfill_schedule" ? many(answer.told.jobs, "job") + " come of it." : ""), "good");
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
  // What was previewed is over in any case.
  failed(text);
  ready(null);
  if (v.asks) {
    if (answer.kind !== "unknown") ready(wantedNow()); // else a second press may do it twice
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
  if ($("operate").open) return; // it was opened again before this came
  operate.busy?.abort();
  if (document.activeElement !== document.body) return; // the browser, or who uses the page, has moved the focus on
  (operate.opener?.isConnected ? operate.opener : $("leases")).focus();
});
