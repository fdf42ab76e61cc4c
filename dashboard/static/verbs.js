// What an operator can do, and the buttons for it. The dialog is in operate.js, which only operators load.

import { make, name, plain } from "./dom.js";
import { leaseOf, operating, state } from "./state.js";
import { clock } from "./words.js";

// The verbs: the kind of object, the label, what it means, and the verb that takes it back. path is where the
// change is sent. Only verbs with lasts write overrides, which can have an end. Verbs with asks move no
// partitions, so they have no preview of moves. shows describes the object, and rehearse asks the server what
// the verb would do.
const leaseVerbs = {
  drain: {
    of: "client", label: "Drain", back: "undrain", lasts: true,
    means: "It owns no partitions: its work ends, and others get its partitions. It stays a member. The override " +
      "names the client's ID, and outlives restarts.",
  },
  undrain: { of: "client", label: "Undrain", means: "It gets its share again." },
  cordon: {
    of: "client", label: "Cordon", back: "uncordon", lasts: true,
    means: "It gets no new partitions, and keeps its partitions until it restarts.",
  },
  uncordon: { of: "client", label: "Uncordon", means: "It gets new partitions again." },
  evict: {
    of: "client", label: "Evict", danger: true,
    means: "Its sessions are revoked, even if it hangs. No heartbeat renews them, guards refuse them at once, and " +
      "others take over within its TTL. Its process ends; a process that starts later is accepted. This cannot " +
      "be undone.",
  },
  pause: {
    of: "lease", label: "Pause", back: "resume", lasts: true,
    means: "The work on its partitions ends, and then they have no owner.",
  },
  resume: { of: "lease", label: "Resume", means: "Its partitions get owners again." },
  freeze: {
    of: "lease", label: "Freeze", back: "unfreeze", lasts: true,
    means: "Its partitions stay in place, except those whose owner crashes, leaves or is drained. A client that " +
      "joins gets only those.",
  },
  unfreeze: { of: "lease", label: "Unfreeze", means: "Its shares become even again." },
  pin: {
    of: "lease", label: "Pin", back: "unpin", lasts: true, fields: ["partition", "client"],
    means: "The client owns the partition while it works on the lease; otherwise another client owns it.",
  },
  unpin: { of: "lease", label: "Unpin", fields: ["partition"], means: "The partition counts in the shares again." },
  drop: {
    of: "lease", label: "Drop", danger: true, when: of => leaseOf(of.subject)?.members.length === 0,
    means: "The lease is deleted. For 24 hours it can be created again only with the same number of partitions, " +
      "unless pgleases drop --partitions sets another number. This cannot be undone.",
  },
};

const scheduleVerbs = {
  pause_schedule: {
    of: "schedule", label: "Pause", when: of => !of.paused,
    means: "It does not run until it is resumed. A run in progress continues.",
  },
  resume_schedule: {
    of: "schedule", label: "Resume", when: of => of.paused, fields: ["catch_up"],
    means: "It runs again at its next tick. The ticks that passed are canceled, or treated as late ticks.",
  },
  trigger_schedule: {
    of: "schedule", label: "Trigger", means: "It runs now, as a job, in addition to its ticks, even if it is paused.",
  },
  backfill_schedule: {
    of: "schedule", label: "Backfill", fields: ["after", "until"],
    means: "It runs again for ticks that have passed, at most 1,000, each as a job of the lowest priority.",
  },
  delete_schedule: {
    of: "schedule", label: "Delete", danger: true, shows: showSchedule,
    means: "It is deleted, and ticks that have passed are canceled. Its history stays. A schedule that the code " +
      "declares comes back with the next process that starts. This cannot be undone.",
  },
  retry_tick: {
    of: "tick", label: "Retry", means: "The schedule runs again for this tick, as a job. The tick keeps its outcome.",
  },
  cancel_job: {
    of: "job", label: "Cancel",
    means: "It does not run any more. The commit of a run in progress is refused; its effects outside of the " +
      "database stay.",
  },
  retry_job: { of: "failed", label: "Retry", means: "It runs again, as a new job." },
};

const consumerVerbs = {
  pause_consumer: {
    of: "consumer", sends: "pause", label: "Pause", when: of => !of.paused,
    means: "Its processes finish the batches in hand, and take no rows until it is resumed.",
  },
  resume_consumer: {
    of: "consumer", sends: "resume", label: "Resume", when: of => of.paused, means: "Its processes take rows again.",
  },
  retry_all: {
    of: "consumer", sends: "retry_all", label: "Retry all", when: of => of.blocked > 0,
    means: "All blocked rows are due now, with all their attempts.",
  },
  return_all: {
    of: "consumer", sends: "return_all", label: "Return all dead letters", when: of => of.letters > 0,
    means: "All dead letters are put back into the queue table, with their IDs, or none if one of them cannot be.",
  },
  retry_rows: {
    of: "blocked", sends: "retry", label: "Retry", means: "The rows are due now, with all their attempts.",
  },
  skip_rows: {
    of: "blocked", sends: "skip", label: "Skip", danger: true,
    means: "The owners of their partitions move the rows to the dead letters, and the next rows of their keys are " +
      "handled. You can return dead letters later.",
  },
  return_rows: {
    of: "letters", sends: "return", label: "Return",
    means: "The rows are put back into the queue table, with their IDs. They are handled before other rows of their " +
      "keys.",
  },
};

const withPath = (path, verbs, more) => Object.fromEntries(
  Object.entries(verbs).map(([verb, v]) => [verb, { path, ...more, ...v }]));

export const verbs = {
  ...withPath("apply", leaseVerbs, { moves: true }),
  ...withPath("ask", scheduleVerbs, {}),
  ...withPath("handle", consumerVerbs, { rehearses: true }),
};

function showSchedule(of) {
  return [
    "Deleted is ", name(of.subject), " of group ", name(of.group), ", of kind ", name(of.is.kind), ", by the rule ",
    name(of.is.rule), of.is.due ? ", due next at " + clock(of.is.due) : "", ".",
  ];
}

// undoOf returns the verb that takes an override back, and the object of it.
export function undoOf(verb) {
  const back = verbs[verb]?.back;
  if (!back) return null;
  return { verb: back, of: w => ({ kind: verbs[verb].of, subject: w.lease || w.client }) };
}

const standing = (verb, of) => state.overrides.some(w => w.verb === verb &&
  (of.kind === "client" ? w.client === of.subject && w.partition === undefined : w.lease === of.subject));

// offered returns the verbs for an object. Those that take something back need an override.
export function offered(of, chosen) {
  const takenBack = v => Object.keys(verbs).filter(w => verbs[w].back === v);
  return Object.keys(verbs).filter(v => {
    if (verbs[v].of !== of.kind || verbs[v].when?.(of) === false) return false;
    const puts = takenBack(v);
    return puts.length === 0 || v === chosen || puts.some(w => standing(w, of));
  });
}

// ---- Buttons.

let open = () => {};
export function onOperate(dialog) {
  open = dialog;
}

// operateButton opens the dialog for an object, with a verb chosen if one is given. of may be a function, for
// an object that is known only when the button is pressed.
export function operateButton(of, verb) {
  const label = verb ? verbs[verb].label : "Operate";
  const known = typeof of === "function" ? of() : of;
  const element = make("button", "act", label);
  element.type = "button";
  const partition = verb && known.partition >= 0 ? ", partition " + known.partition : "";
  element.setAttribute("aria-label", label + " " + plain(known.label ?? known.subject) + partition);
  element.setAttribute("aria-haspopup", "dialog");
  element.addEventListener("click", () => open(typeof of === "function" ? of() : of, element, verb));
  return element;
}

// operateButtons returns a list with the button, and none for somebody who only looks.
export const operateButtons = (of, verb) => operating ? [operateButton(of, verb)] : [];
