// The overview: is anything wrong, what happened in the last hour, and where to look.

import { card, drawTiles, fill, keyed, make, mark, plain, setText } from "./dom.js";
import { addressOf, go, here, link } from "./address.js";
import { isStale, leaseOf, reading, state } from "./state.js";
import { clock, count, many, span } from "./words.js";
import { periodOf, picker } from "./time.js";
import { isBehind } from "./consumers.js";
import { factsOf, isMissed } from "./leases.js";
import { newOverrides } from "./overrides.js";
import { drawStrip } from "./strip.js";
import { newCurves } from "./curve.js";

const rank = { fault: 0, warning: 1, note: 2, ok: 3 };
const levels = { fault: ["bad", "fault"], warning: ["warn", "warning"], note: ["", "note"], ok: ["good", "ok"] };

export function overview() {
  const verdict = make("p", "verdict");
  const tiles = make("dl", "summary");
  tiles.setAttribute("aria-label", "Summary");
  tiles.id = "summary";
  const strips = make("div", "strips");
  strips.id = "strips";
  const findings = make("ul", "findings");
  findings.id = "finding-list";
  const fine = make("ul", "findings");
  fine.id = "fine-list";
  const well = make("details", "", make("summary", ""), fine);
  const overrides = newOverrides(() => true);
  const curves = newCurves(tiles, curvesOfAll);
  const element = make("div", "", verdict, tiles, curves.element,
    card("What happened", picker("1h", ["1h", "24h", "7d"]), strips),
    overrides.element,
    card("Findings of doctor", null, findings, well));
  let consumers = null, sampled = null;
  reading("past", () => periodOf(here().query), 10_000, answer => drawPast(strips, answer));
  const drawNow = () => {
    const shown = tilesOf(consumers);
    drawVerdict(verdict, shown);
    drawNumbers(tiles, shown);
  };
  reading("consumers", () => ({}), 10_000, answer => {
    consumers = answer;
    drawNow();
  });
  reading("curves", () => ({ of: "all", since: "24h" }), 30_000, answer => {
    sampled = answer;
    curves.draw(sampled);
  });
  return {
    element,
    parts: ["clients", "leases", "ages", "locks", "schedules", "overrides", "health", "state"],
    draw() {
      const had = tiles.children.length;
      drawNow();
      if (sampled && had === 0) curves.draw(sampled); // the samples came first
      drawFindings(findings, fine, well);
      overrides.draw();
    },
  };
}

// ---- The verdict, in one line with its age.

const checkedWithin = 90_000; // ms, in which doctor has examined three times

// drawVerdict says what doctor has found and what the tiles show, so that it never claims health beside a red tile.
function drawVerdict(element, tiles) {
  const findings = state.health?.findings || [];
  const n = level => findings.filter(f => f.level === level).length;
  const [faults, warnings] = [n("fault"), n("warning")];
  const ill = (tiles || []).filter(([, , , , kind]) => kind !== "");
  const found = [faults > 0 ? many(faults, "fault") : "", warnings > 0 ? many(warnings, "warning") : ""].filter(w => w);
  const seen = ill.map(([label, , , words]) => label.toLowerCase() + ", " + words);
  const checked = state.status?.checked_ms;
  const bad = faults > 0 || ill.some(([, , , , kind]) => kind === "bad");
  const unknown = "It is not known whether all is well, because ";
  const isRead = tiles && tiles.every(([, , number]) => number !== "…");
  const [kind, text] = tiles && isStale() ? ["", unknown + "this is from " + clock(state.seenAt) + "."] :
    !state.health || !isRead ? ["", "The health is being checked."] :
      found.length > 0 || ill.length > 0 ?
        [bad ? "bad" : "warn", "Not well: " + (found.join(" and ") || seen.join("; ")) + "."] :
        checked > checkedWithin ? ["", unknown + "it was last checked at " + clock(Date.now() - checked) + "."] :
          ["good", "All is well."];
  const checks = new Set(findings.map(f => f.check)).size;
  const age = state.health ? " Checked " + span(checked) + " ago, " + many(checks, "check") + "." : "";
  element.className = "verdict " + kind;
  fill(element, text + age, make("strong", "", text), make("span", "sub", age));
}

// ---- The tiles.

const curvesOfAll = [
  ["Clients", ["clients"]], ["Leases", ["leases"]], ["Without owner", ["unowned"]],
  ["Consumers", ["waiting"], "rows waiting"], ["Schedules", ["failing", "late"], "failing or late"],
  ["Locks held", ["locks"]],
];

// tilesOf returns for each tile its label, its screen, its number, its words, and its kind of color; null: there is no
// data yet.
function tilesOf(consumers) {
  if (!state.status?.seen) return null;
  const sum = { partitions: 0, moving: 0, orphans: 0, lost: 0 };
  for (const lease of state.leases) {
    const facts = factsOf(lease);
    sum.partitions += lease.partitions;
    sum.moving += facts.moving;
    sum.orphans += facts.orphans;
    if (isMissed(lease)) sum.lost += facts.orphans;
  }
  const silent = state.clients.filter(c => c.expired).length;
  const orphanWords = sum.orphans === 0 ? "all have an owner" :
    sum.lost > 0 ? "of " + many(sum.partitions, "partition") : "of leases that are paused or that no process runs";
  return [
    ["Clients", "clients", count(state.clients.length - silent), silent ? count(silent) + " expired" : "all are live",
      silent ? "bad" : ""],
    ["Leases", "leases", count(state.leases.length),
      many(sum.partitions, "partition") + (sum.moving ? ", " + count(sum.moving) + " moving" : ""), ""],
    ["Without owner", "leases", count(sum.orphans), orphanWords, sum.lost ? "bad" : ""],
    consumersTile(consumers),
    schedulesTile(state.schedules),
    locksTile(state.locks),
  ];
}

function schedulesTile(told) {
  const head = ["Schedules", "schedules"];
  if (!told) return [...head, "…", "are being read", ""];
  if (told.failure) return [...head, "?", "cannot be read", "warn"];
  const sum = what => told.groups.reduce((n, group) => n + group[what], 0);
  const ill = ills([sum("failing"), "failing"], [sum("late"), "late"], "none fails or is late");
  return [...head, count(sum("schedules")), ...ill];
}

function locksTile(told) {
  const head = ["Locks held", "locks"];
  if (!told) return [...head, "…", "are being read", ""];
  if (told.failure) return [...head, "?", "cannot be read", "warn"];
  const held = told.locks.filter(l => l.holders.length > 0).length;
  const waiting = told.locks.reduce((n, l) => n + l.waiting, 0);
  const words = waiting > 0 ? many(waiting, "client waits", "clients wait") : "no client waits";
  return [...head, count(held) + (told.more ? "+" : ""), words, ""];
}

function drawNumbers(element, tiles) {
  if (!tiles) return;
  const screens = new Map(tiles.map(([label, screen]) => [label, screen]));
  const shown = tiles.map(([label, , ...rest]) => [label, ...rest]);
  drawTiles(element, shown, label => link(addressOf(screens.get(label)), label));
}

function consumersTile(told) {
  const head = ["Consumers", "consumers"];
  if (!told) return [...head, "…", "are being read", ""];
  if (told.text) return [...head, "?", "cannot be read", "warn"];
  const blocked = told.consumers.filter(c => c.blocked_keys > 0).length;
  const late = told.consumers.filter(isBehind).length;
  const none = told.consumers.length > 0 ? "none is blocked or behind" : "there are none";
  return [...head, count(told.consumers.length), ...ills([blocked, "blocked"], [late, "behind"], none)];
}

// ills returns the words of a tile and its kind of color: how many things are bad, and how many only deserve a warning,
// each with its word; and what to say if there are none.
function ills(bad, warn, none) {
  const words = [bad, warn].filter(([n]) => n > 0).map(([n, word]) => count(n) + " " + word);
  return [words.join(", ") || none, bad[0] > 0 ? "bad" : warn[0] > 0 ? "warn" : ""];
}

// ---- What happened.

function drawPast(element, told) {
  const parts = [];
  const events = (from, to) => go(addressOf("events", [], { from: instant(from), to: instant(to) }));
  for (const failure of [told.text, told.moves_failure, told.runs_failure]) {
    if (failure) parts.push(make("p", "failure", plain(failure)));
  }
  if (told.moves || told.runs) parts.push(drawStrip(told, events));
  // A picture that somebody points at, or a table that is open, stays.
  const used = element.querySelector("[role=slider]:hover, :focus, details[open]");
  if (!used) fill(element, JSON.stringify(told), ...parts);
}

const instant = ms => new Date(ms).toISOString().replace(".000Z", "Z");

// ---- The findings.

function drawFindings(element, fine, well) {
  if (!state.health) return;
  const sorted = state.health.findings.toSorted((a, b) => rank[a.level] - rank[b.level]);
  drawList(element, sorted.filter(f => f.level !== "ok"));
  const others = sorted.filter(f => f.level === "ok");
  drawList(fine, others);
  setText(well.querySelector("summary"), many(others.length, "check") + " found nothing");
}

function drawList(element, findings) {
  let n = 0;
  keyed(element, findings.map(f => ({ f, key: JSON.stringify(f) + n++ })), x => x.key, ({ f }) => {
    const [kind, word] = levels[f.level] || ["", f.level];
    const text = make("div", "", make("p", "", ...linked(f)));
    if (f.remedy) {
      for (const line of f.remedy.split("\n")) text.append(make("p", "sub remedy", plain(line)));
    }
    return make("li", "", make("span", "", mark(word, kind)), make("span", "check", f.check), text);
  }, () => {});
}

const quoted = /"(?:[^"\\]|\\.)*"/gu;

// linked returns a text of doctor in which the things that it names in quotes are links.
function linked(finding) {
  const { text } = finding;
  const parts = [];
  let end = 0, group = "";
  for (const found of text.matchAll(quoted)) {
    const of = unquoted(found[0]);
    const before = text.slice(0, found.index);
    const isGroup = before.endsWith("group ");
    const isSchedule = finding.check === "schedules" && group !== "" && before.endsWith("such as ");
    const names = isGroup ? [of] : [group, of];
    const isClient = before.endsWith("client "); // perhaps one that is gone, of which only its past is shown
    const address = isGroup || isSchedule ? addressOf("schedules", names) :
      isClient && of !== "" ? addressOf("clients", [of]) : addressFor(of);
    if (isGroup) group = of;
    if (!address) continue;
    parts.push(plain(text.slice(end, found.index)), link(address, plain(found[0])));
    end = found.index + found[0].length;
  }
  return [...parts, plain(text.slice(end))];
}

// unquoted returns a name as it is. Go writes some characters in another way than JSON, and these names have no link.
function unquoted(text) {
  try {
    return JSON.parse(text);
  } catch {
    return "";
  }
}

// addressFor returns where the thing with a name is shown; empty: nothing has the name.
function addressFor(of) {
  if (leaseOf("consumer/" + of)) return addressOf("consumers", [of]);
  if (leaseOf(of)) return addressOf("leases", [of]);
  if (state.byID.has(of)) return addressOf("clients", [of]);
  if (state.locks?.locks.some(l => l.name === of)) return addressOf("locks", [], { q: of });
  return "";
}
