// The list of clients: their heartbeats, their shares and their processes.

import { fill, keyed, make, mark, name, plain, row, setText, table, unseen } from "./dom.js";
import { operating, state } from "./state.js";
import { clock, count, span } from "./words.js";
import { filterField, matches, mostRows, noteOf } from "./filter.js";
import { whoIn } from "./owners.js";
import { operateButtons } from "./verbs.js";

const words = { none: "There is no client.", noMatch: "No client, host or metadata matches.", thing: "client" };

// dataOf returns what the application says of a client.
export const dataOf = client => Object.entries(client.metadata).map(([key, value]) => key + "=" + value).join(" ");

export function marksOf(client) {
  const marks = [];
  if (client.expired) marks.push(["bad", "expired: no heartbeat for its TTL"]);
  if (client.superseded) marks.push(["warn", "superseded: a newer process has its ID"]);
  if (client.evicted) marks.push(["warn", "evicted by an operator"]);
  for (const w of state.overrides) {
    if (w.client === client.id && w.partition === undefined) marks.push(["warn", "override: " + plain(w.verb)]);
  }
  if (client.fast_failover) marks.push(["", "fast failover"]);
  return marks;
}

// sharesOf returns the numbers of partitions and leases of each session.
function sharesOf() {
  const shares = new Map();
  for (const lease of state.leases) {
    for (const m of lease.members) {
      const share = shares.get(m.session) || { owned: 0, leases: 0 };
      share.owned += m.owned;
      share.leases++;
      shares.set(m.session, share);
    }
  }
  return shares;
}

const badness = c => c.expired ? 0 : c.superseded || c.evicted ? 1 : 2;

export function clients() {
  const heads = [
    "Client", "Last heartbeat", ["n", "Owns"], ["n", "Leases"], ["process", "Process"], ["started", "Started"],
    ...(operating ? [unseen("Operate")] : []),
  ];
  const all = table("Clients", heads, "client-rows");
  const note = make("p", "note");
  note.id = "clients-note";
  const box = make("div", "card scroll tall", all);
  const element = make("div", "", filterField("Show only clients, hosts and metadata that contain"), box, note);
  return {
    element,
    parts: ["clients", "leases", "ages", "overrides"],
    draw(changed) {
      if (changed.size === 1 && changed.has("ages")) {
        drawAges(all);
        return;
      }
      const shares = sharesOf();
      const matching = state.clients.filter(c => matches(c.id, c.host, dataOf(c)));
      const shown = matching.toSorted((a, b) => badness(a) - badness(b));
      box.hidden = shown.length === 0;
      keyed(all.tBodies[0], shown.slice(0, mostRows), c => c.session, createRow,
        (element, c) => updateRow(element, c, shares.get(c.session) || { owned: 0, leases: 0 }));
      setText(note, noteOf(state.clients.length, shown.length, words));
      drawAges(all);
    },
  };
}

function createRow(client) {
  const head = ["", make("span"), " ", make("span")];
  return row(head, ["", beatOf()], ["n"], ["n"], ["sub process"], ["sub nowrap started"],
    ...operateButtons({ kind: "client", subject: client.id }).map(b => ["n", b]));
}

// beatOf shows the age of a heartbeat beside the TTL.
export function beatOf() {
  const track = make("div", "track", make("span", "fill"));
  track.setAttribute("aria-hidden", "true");
  return make("div", "beat", make("span", "nowrap"), track);
}

export function drawBeat(beat, client, ms) {
  const ttl = client.ttl_ns / 1e6;
  const part = Math.min(1, ms / ttl);
  setText(beat.querySelector("span"), span(ms) + " of " + span(ttl));
  beat.querySelector(".fill").style.transform = "scaleX(" + part.toFixed(3) + ")";
  beat.className = "beat " + (client.expired ? "expired" : part > 0.6 ? "late" : "");
}

function drawAges(all) {
  const age = new Map(state.clients.map((c, i) => [c.session, state.ages[i] || 0]));
  for (const element of all.tBodies[0].children) {
    const client = state.bySession.get(element.key);
    if (client) drawBeat(element.children[1].firstChild, client, age.get(client.session));
  }
}

function updateRow(element, client, share) {
  const [head, , owned, leases, process, started] = element.children;
  whoIn(head.children[0], client.id);
  const marks = marksOf(client);
  fill(head.children[1], JSON.stringify(marks), ...marks.map(([kind, text]) => mark(text, kind)));
  setText(owned, count(share.owned));
  setText(leases, count(share.leases));
  const metadata = dataOf(client);
  const characters = [...metadata];
  const cut = characters.slice(0, 30).join("") + "…" + characters.slice(-29).join("");
  const short = characters.length > 60 ? cut : metadata;
  const signature = JSON.stringify([client.host, client.pid, metadata]);
  fill(process, signature, name(client.host), " " + client.pid, ...(short ? [" ", name(short)] : []));
  process.title = plain(metadata);
  setText(started, clock(client.started));
}
