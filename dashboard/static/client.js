// One client: is it alive, what does it own, and what happened to it.

import { card, drawFacts, fill, keyed, make, mark, name, plain, row, setText, table } from "./dom.js";
import { here } from "./address.js";
import { reading, state } from "./state.js";
import { clock, count, span } from "./words.js";
import { periodOf, picker } from "./time.js";
import { leaseLink, who } from "./owners.js";
import { operateButtons } from "./verbs.js";
import { beatOf, dataOf, drawBeat, marksOf } from "./clients.js";
import { eventItem } from "./event.js";
import { newOverrides } from "./overrides.js";

export function client({ names: [id] }) {
  const facts = make("div", "facts-list");
  const marks = make("p", "marks");
  const gone = make("p", "", "No client with this ID is live. Below is what happened to it.");
  const heads = ["Lease", ["n", "Owns"], ["n", "Share"], ["n", "Weight"], "Joined"];
  const shares = table("Leases of " + plain(id), heads, "share-rows");
  const owned = make("div", "card scroll tall", shares);
  const list = make("ol", "events");
  list.id = "event-list";
  const note = make("p", "note");
  const beat = beatOf();
  const overrides = newOverrides(w => w.client === id);
  const element = make("div", "",
    card(["Now"], operateButtons({ kind: "client", subject: id }), gone, facts, marks), overrides.element, owned,
    card("What happened to it", picker("24h", ["1h", "24h", "7d", "30d"]), list, note));
  const query = () => ({ client: id, ...periodOf(here().query, "24h") });
  const read = reading("happened", query, 10_000, told => {
    const events = told.events || [];
    list.hidden = events.length === 0;
    keyed(list, events.slice(0, 200), e => e.id, e => eventItem(e), () => {});
    setText(note, told.text ? plain(told.text) : events.length === 0 ? "Nothing in this period." :
      events.length > 200 ? "The latest 200 events." : "");
  });
  return {
    element,
    parts: ["clients", "leases", "ages", "overrides"],
    end: read.end,
    draw() {
      const found = state.byID.get(id);
      gone.hidden = !!found || !state.status?.seen;
      facts.hidden = !found;
      owned.hidden = !found;
      overrides.draw();
      if (!found) return;
      drawNow(facts, found, beat);
      const all = marksOf(found);
      fill(marks, JSON.stringify(all), ...all.flatMap(([kind, text]) => [mark(text, kind), " "]));
      const memberships = state.leases.flatMap(l =>
        l.members.filter(m => m.session === found.session).map(m => ({ l, m })));
      owned.hidden = memberships.length === 0;
      keyed(shares.tBodies[0], memberships, x => x.l.name,
        ({ l }) => row(leaseLink(l.name), ["n"], ["n"], ["n"], ["nowrap"]), (element, { m }) => {
          setText(element.children[1], count(m.owned));
          setText(element.children[2], Number.isInteger(m.share) ? count(m.share) : m.share.toFixed(1));
          setText(element.children[3], count(m.weight));
          setText(element.children[4], clock(m.joined));
        });
    },
  };
}

function drawNow(element, found, beat) {
  const age = state.ages[state.clients.indexOf(found)] || 0;
  const ttl = found.ttl_ns / 1e6;
  const margin = Math.max(100, ttl / 20); // as the library has it
  drawBeat(beat, found, age);
  const left = ttl - margin - age;
  const trust = left > 0 ? "for " + span(left) + " more" : "ended " + span(-left) + " ago";
  const facts = [
    ["Client", who(found.id)], ["Last heartbeat", beat], ["Trusts what it owns", trust],
    ["Process", make("span", "", name(found.host), " " + found.pid)], ["Started", clock(found.started)],
  ];
  if (dataOf(found)) facts.push(["Metadata", name(dataOf(found))]);
  drawFacts(element, found.session, facts);
  setText(element.children[2].children[1], trust);
}
