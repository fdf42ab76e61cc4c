// What the page knows: the parts of the polls, which all viewers share, and answers to its own questions.

import { root } from "./address.js";

export const state = {
  clients: [], bySession: new Map(), byID: new Map(), leases: [], ages: [], overrides: [],
  locks: null, events: null, schedules: null, health: null,
  status: null,
  seenAt: 0, // time of the shown data, by this browser's clock; 0: no data
  link: "connecting", // or open, lost, denied
  chosen: null, // the client whose partitions are highlighted
};

// operating reports whether the user makes changes: only then the page has the dialog.
export const operating = document.getElementById("operate") !== null;

// ---- What draws. later collects what has changed, and calls the listener once for all of it.

let listener = () => {};
export function onChange(draw) {
  listener = draw;
}

const due = new Set();
export function later(...what) {
  if (due.size === 0) requestAnimationFrame(() => {
    const changed = new Set(due);
    due.clear();
    listener(changed);
  });
  for (const w of what) due.add(w);
}

// ---- The parts.

const parts = {
  clients(list) {
    state.clients = list;
    state.bySession = new Map(list.map(c => [c.session, c]));
    state.byID = new Map();
    for (const c of list) {
      if (!state.byID.has(c.id) || !c.superseded) state.byID.set(c.id, c);
    }
    if (state.chosen !== null && !state.byID.has(state.chosen)) state.chosen = null;
  },
  leases({ names, changed }) { // the others are unchanged
    const known = new Map(state.leases.concat(changed).map(l => [l.name, l]));
    state.leases = names.map(n => known.get(n));
  },
  ages(list) { state.ages = list; },
  locks(told) { state.locks = told; },
  events(told) { state.events = told; },
  overrides(list) { state.overrides = list; },
  schedules(told) { state.schedules = told; },
  health(told) { state.health = told; },
};

export const leaseOf = name => state.leases.find(l => l.name === name);
export const slotOf = id => state.byID.get(id)?.slot ?? -1;

// During a pause, partitions without an owner are no fault.
export const isPaused = lease => state.overrides.some(w => w.verb === "pause" && w.lease === lease.name);

// ---- The polls. Each second the page sends the versions of its parts, and receives the parts that differ.
// In the background it does not poll.

const versions = {}; // by part
const patience = 8000; // ms, limit for an answer
const old = 4000; // ms, age from which data is stale

// isStale reports whether what is shown may be out of date. A server that has just started may have no data.
export const isStale = () =>
  state.link !== "open" || !!state.status?.stale || state.seenAt > 0 && Date.now() - state.seenAt > old;

let polling = false, timer = 0, failures = 0;

export async function poll() {
  clearTimeout(timer);
  if (polling || document.hidden) return;
  polling = true;
  const { link, told } = await askPoll();
  polling = false;
  timer = setTimeout(poll, pause(link, told));
  state.link = link;
  later("state");
  if (!told) return;
  failures = 0;
  state.status = told.status;
  if (told.status.seen) state.seenAt = Date.now() - told.status.age_ms;
  for (const [part, { version, content }] of Object.entries(told.parts)) {
    if (!parts[part]) continue; // the server may have another version
    parts[part](content);
    versions[part] = version;
    later(part);
  }
}

function pause(link, told) {
  if (link === "open") return told.status.seen || told.status.failure ? 1000 : 200;
  return link === "denied" ? 15000 : Math.min(10000, 500 * 2 ** failures++);
}

const isJSON = answer => (answer.headers.get("Content-Type") || "").startsWith("application/json");

// askPoll returns the result of a poll, and the answer if there is one.
async function askPoll() {
  try {
    const query = "poll?" + new URLSearchParams(versions);
    const options = { redirect: "manual", cache: "no-store", signal: AbortSignal.timeout(patience) };
    const answer = await fetch(root + "data/" + query, options);
    const told = answer.ok && isJSON(answer) ? await answer.json() : null;
    return told?.status ? { link: "open", told } : { link: denies(answer) ? "denied" : "lost" };
  } catch { // the network, or the server, is away
    return { link: "lost" };
  }
}

// ---- Questions of this page.

// denies reports whether an unexpected answer means that the user must sign in: our own 403, or from a login
// in front a redirect, a 401, or a page. Another answer of a proxy, for example 404 or 421 of an ingress
// without a server behind it, does not mean that.
const denies = answer => answer.type === "opaqueredirect" || answer.ok || [401, 403, 407].includes(answer.status);
export const signIn = "Sign in again, in another tab. Then this page continues, and keeps your input.";

const longest = 30_000; // ms, limit for an answer, for which the server waits for up to 15 s

// get returns the content of an answer, or an object whose text is the reason why there is none.
export async function get(path, query) {
  try {
    const address = root + "data/" + path + "?" + new URLSearchParams(query);
    const options = { redirect: "manual", cache: "no-store", signal: AbortSignal.timeout(longest) };
    const answer = await fetch(address, options);
    if (isJSON(answer)) return await answer.json();
    return { text: denies(answer) ? "You may not look any more. " + signIn : "The dashboard does not answer." };
  } catch {
    return { text: "The dashboard does not answer." };
  }
}

// post returns the content of the answer to a change, and its kind: ok, or the reason why there is none.
export async function post(path, content, ...signals) {
  try {
    const signal = AbortSignal.any([...signals, AbortSignal.timeout(longest)]);
    const answer = await fetch(root + "data/" + path, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content),
      redirect: "manual", cache: "no-store", signal,
    });
    const told = isJSON(answer) ? await answer.json() : null;
    if (told && answer.ok) return { kind: "ok", told };
    if (told) return { kind: told.kind, text: told.text };
    if (denies(answer)) return { kind: "denied", text: "You may not do this any more. " + signIn };
    return { kind: answer.status >= 500 ? "unknown" : "failed", text: "The dashboard does not answer." };
  } catch (error) {
    if (error.name === "AbortError") return { kind: "stopped" };
    return { kind: "unknown", text: "The dashboard does not answer." };
  }
}

// Readings are the questions that the shown screen asks again and again, while it is in sight.
const readings = new Set();

// reading asks a question now, and each time after a pause in ms. show gets the content, or an object whose
// text is the reason why there is none. now() asks at once, for example after a change of its query. soon() asks
// when the question under way is answered, so answers are shown also if it is called more often than they come.
export function reading(path, query, every, show) {
  let turn = 0, again = 0, asking = false, wanted = false;
  const self = {
    async now() {
      clearTimeout(again);
      if (document.hidden) return;
      const mine = ++turn;
      asking = true;
      wanted = false;
      const answer = await get(path, query());
      if (mine !== turn) return; // another one has started, or the screen has ended
      asking = false;
      again = setTimeout(self.now, answer.text ? Math.min(every, 5000) : every); // sooner if it failed
      show(answer);
      if (wanted) self.now();
    },
    soon() {
      if (asking) wanted = true;
      else self.now();
    },
    end() {
      turn++;
      clearTimeout(again);
      readings.delete(self);
    },
  };
  readings.add(self);
  self.now();
  return self;
}

// readAgain asks all questions of the shown screen at once, for example after a change.
export function readAgain() {
  for (const one of readings) one.now();
}

// endReadings ends the questions of a screen that is left.
export function endReadings() {
  for (const one of readings) one.end();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  if (state.link !== "denied") state.link = "connecting";
  poll();
  readAgain();
  later("state");
});
