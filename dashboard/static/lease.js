// One lease: its map, its members, and the lives of its partitions.

import { card, fill, keyed, make, plain, row, setText, table } from "./dom.js";
import { addressOf, go, here } from "./address.js";
import { leaseOf, operating, reading, state } from "./state.js";
import { count, many } from "./words.js";
import { pauseOf, periodOf, picker } from "./time.js";
import { whoButton, whoIn } from "./owners.js";
import { operateButton } from "./verbs.js";
import { marksOf } from "./leases.js";
import { newMap } from "./map.js";
import { newBand } from "./band.js";
import { newOverrides } from "./overrides.js";

const mostMembers = 500;

export function lease({ names: [of] }) {
  const missing = make("p", "card block", "There is no lease of this name. It may have been dropped.");
  missing.hidden = true;
  const present = newPresent(of);
  const band = newBand(of);
  const overrides = newOverrides(w => w.lease === of);
  const element = make("div", "", missing, present.element, overrides.element,
    card("Owners through time", picker("1h", ["1h", "24h", "7d"]), band.element));
  const query = () => ({ lease: of, ...periodOf(here().query) });
  const read = reading("life", query, pauseOf(periodOf(here().query)), band.show);
  return {
    element,
    parts: ["leases", "clients", "overrides"],
    end: read.end,
    draw(changed) {
      const found = leaseOf(of);
      missing.hidden = !!found || !state.status?.seen;
      present.element.hidden = !found;
      if (found) present.update(found);
      overrides.draw();
      if (changed.has("size") || changed.has("clients") || changed.has("chosen")) band.draw();
    },
  };
}

// newPresent returns the card of what is so now.
function newPresent(of) {
  const facts = make("p", "facts");
  const heads = ["Member", ["n", "Owns"], ["n", "Share"], ["n", "Weight"], ["n", "Moves"]];
  const members = table("Members of " + plain(of), heads);
  const note = make("p", "note");
  const header = make("header", "", make("h2", "", "Owners now"), facts, keyField(of));
  const element = make("article", "card lease", header);
  let map = null;
  if (operating) {
    header.append(operateButton(() => ({ kind: "lease", subject: of, partition: map?.cursor ?? -1 })));
  }
  const update = found => {
    if (!map) {
      map = newMap(found);
      element.append(make("div", "parts", map.element, make("div", "members", members, note)));
    }
    const counts = many(found.partitions, "partition") + ", " + many(found.members.length, "member");
    const marks = marksOf(found);
    const shown = marks.flatMap(([kind, text]) => [", ", make("span", kind, plain(text))]);
    fill(facts, counts + JSON.stringify(marks), counts, ...shown);
    keyed(members.tBodies[0], found.members.slice(0, mostMembers), m => m.session, newMember, updateMember);
    const hidden = found.members.length - mostMembers;
    setText(note, found.members.length === 0 ? "The lease has no members: start a process that joins it." :
      hidden > 0 ? many(hidden, "more member") + " not shown." : "");
    map.update(found);
  };
  return { element, update };
}

const newMember = () => row([""], ["n"], ["n"], ["n"], ["n sub"]);

function updateMember(element, m) {
  const [head, owned, share, weight, moves] = element.children;
  whoIn(head, m.client, whoButton);
  setText(owned, count(m.owned));
  setText(share, Number.isInteger(m.share) ? count(m.share) : m.share.toFixed(1));
  setText(weight, m.weight === 0 ? "0, gets none" : count(m.weight));
  const signed = [m.outgoing ? "−" + count(m.outgoing) : "", m.incoming ? "+" + count(m.incoming) : ""];
  setText(moves, signed.join(" ").trim());
  element.classList.toggle("expired", !!state.bySession.get(m.session)?.expired);
}

// keyField is where one types a key, to see its partition.
function keyField(of) {
  const input = make("input", "");
  Object.assign(input, { type: "search", autocomplete: "off", spellcheck: false, placeholder: "such as customer-7" });
  const form = make("form", "key", make("label", "", "Partition of key ", input));
  form.addEventListener("submit", event => {
    event.preventDefault();
    if (input.value !== "") go(addressOf("leases", [of], { key: input.value }));
  });
  return form;
}
