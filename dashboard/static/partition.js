// One partition: who owns it, why, and who owned it before. A key leads to its partition.

import { card, drawFacts, fill, make, mark, name, plain, row, table } from "./dom.js";
import { addressOf, here, link } from "./address.js";
import { reading } from "./state.js";
import { clock, count, isTime, span } from "./words.js";
import { pauseOf, periodOf, picker } from "./time.js";
import { who, whoLink } from "./owners.js";
import { newBand } from "./band.js";
import { wordsOf } from "./event.js";

export function partition({ names: [lease, number], query }) {
  const facts = make("div", "facts-list");
  const reasons = make("ul", "reasons");
  const failure = make("p", "failure");
  const isOfKey = number === undefined;
  const title = isOfKey ? ["Owner of the key ", name(query.key)] : ["Owner now"];
  const past = make("div", "");
  const element = make("div", "", card(title, null, failure, facts, reasons), past);
  const asked = isOfKey ? { lease, key: query.key } : { lease, partition: number };
  let history = null;
  const present = reading("explain", () => asked, 2000, told => {
    fill(failure, told.text || "", told.text ? plain(told.text) : "");
    if (told.text) return;
    drawNow(facts, told);
    fill(reasons, JSON.stringify(told.reasons), ...told.reasons.map(text => make("li", "", plain(text))));
    history ||= newHistory(past, lease, told.partition);
  });
  return {
    element,
    parts: ["clients"],
    end: present.end,
    draw: () => history?.draw(),
  };
}

function drawNow(element, told) {
  const facts = [
    ["Partition", link(addressOf("leases", [told.lease, String(told.partition)]), count(told.partition))],
    ["Owner", told.owner ? whoLink(told.owner) : mark("no owner", "bad")],
    ["Epoch", told.epoch],
    ["Since", isTime(told.since) ? clock(told.since) : "not known"],
  ];
  if (told.target && told.target !== told.owner) facts.push(["Moves to", who(told.target)]);
  if (told.preferred_owner) facts.push(["Goes back to", who(told.preferred_owner)]);
  const { owner, epoch, since, target, preferred_owner: preferred } = told;
  drawFacts(element, JSON.stringify([told.partition, owner, epoch, since, target, preferred]), facts);
}

// newHistory shows the owners of a partition through time.
function newHistory(place, lease, partition) {
  const band = newBand(lease, partition);
  const heads = ["Owner", "From", "Until", ["n", "For"], "Began when it was"];
  const owners = table("Owners through time", heads, "owner-rows");
  place.append(card("Owners through time", picker("24h", ["1h", "24h", "7d", "30d"]), band.element),
    make("div", "card scroll tall", owners));
  const query = () => ({ lease, partition, ...periodOf(here().query, "24h") });
  reading("life", query, pauseOf(periodOf(here().query, "24h")), told => {
    band.show(told);
    if (told.text) return;
    const end = +new Date(told.until);
    const rows = told.spells.map(s => row(
      s.owner === "" ? mark("no owner", "bad") : whoLink(s.owner),
      s.cause ? clock(s.since) : "before " + clock(s.since),
      +new Date(s.until) < end ? clock(s.until) : "now",
      ["n", span(new Date(s.until) - new Date(s.since))],
      wordsOf(s.cause) || "before the period"));
    fill(owners.tBodies[0], JSON.stringify(told.spells.map(s => [s.owner, s.since, s.cause])), ...rows);
  });
  return band;
}
