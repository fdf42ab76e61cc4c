// The life band of a lease: time from left to right, partitions from top to bottom, in the colors of their
// owners. Where a partition had no owner, it is red. Marks above it show events. With the arrow keys one goes
// through the events and the partitions.

import { fill, keyed, make, name, plain, row, scroll, setText, table } from "./dom.js";
import { go, addressOf, link } from "./address.js";
import { paint, pattern, styles } from "./colors.js";
import { isPaused, state } from "./state.js";
import { clock, count, many, rangesText, span } from "./words.js";
import { axis } from "./time.js";
import { eventItem, kindOf, wordsOf } from "./event.js";
import { who, whoLink } from "./owners.js";
import { fit } from "./map.js";

const lane = 14; // height of the marks, in CSS pixels
const tallest = 320, rowsMost = 128; // of the band; the arrow keys go through at most so many steps
const mostEvents = 200, mostSpells = 500;

// newBand returns the band of a lease, or of one of its partitions. show takes the answer of the server.
export function newBand(lease, partition = null) {
  const canvas = make("canvas", "band");
  canvas.setAttribute("aria-hidden", "true");
  const place = make("div", "band-place", canvas);
  const band = {
    lease, partition, canvas, place, life: null, spells: [], events: [], slots: new Map(),
    event: -1, row: 0, pointed: null,
    note: make("p", "cell"), more: link("", "Its past"), failure: make("p", "failure"), axis: make("div", ""),
    legend: make("div", "legend"), list: make("ol", "events band-events"),
  };
  band.numbers = tableOf(band);
  const line = make("div", "line", band.note, band.more);
  const picture = make("div", "", place, band.axis, line, band.legend, band.numbers, band.list);
  picture.hidden = true;
  place.tabIndex = 0;
  place.setAttribute("role", "slider");
  const part = partition === null ? "" : "partition " + partition + " of ";
  place.setAttribute("aria-label", "Owners of " + part + plain(lease) + " through time: use the arrow keys");
  listen(band);
  band.more.hidden = true;
  return {
    element: make("div", "", band.failure, picture),
    draw: () => draw(band),
    show(answer) {
      setText(band.failure, answer.text ? plain(answer.text) : "");
      if (answer.text) return;
      picture.hidden = false;
      take(band, answer);
      draw(band);
      describe(band);
    },
  };
}

// take takes what the server has read.
function take(band, life) {
  const chosen = band.events[band.event]?.id;
  band.life = life;
  band.start = +new Date(life.asked);
  band.end = +new Date(life.until);
  band.spells = life.spells.map(s => ({ ...s, from: +new Date(s.since), to: +new Date(s.until) }));
  band.events = life.events.toReversed(); // the oldest first
  band.event = band.events.findIndex(e => e.id === chosen);
  markPauses(band);
  fill(band.axis, life.asked + life.until, axis(band.start, band.end));
}

// nameOwners draws the list of events and the legend, in the colors of the owners. Those of live clients come with the
// polls, so the list and the legend may be older than these.
function nameOwners(band) {
  giveSlots(band);
  const latest = band.life.events.slice(0, mostEvents);
  keyed(band.list, latest, e => e.id + slotOf(band, e.from) + slotOf(band, e.to), e => {
    const item = eventItem(e, id => slotOf(band, id), band.lease);
    item.event = e.id;
    return item;
  }, () => {});
  band.list.hidden = latest.length === 0;
  drawLegend(band);
}

// settling is how long after a pause its partitions may still be without an owner, in milliseconds.
const settling = 10_000;

// markPauses marks the gaps that a pause explains. Of a gap that lasts for longer than the pause, the rest is one of
// its own.
function markPauses(band) {
  const pauses = pausesOf(band);
  band.spells = band.spells.flatMap(s => {
    const pause = s.owner === "" && pauses.find(([from, to]) => from <= s.from && s.from <= to);
    if (!pause) return [s];
    if (s.to <= pause[1] + settling) return [{ ...s, paused: true }];
    return [{ ...s, from: pause[1] }, { ...s, to: pause[1], paused: true }];
  });
}

// pausesOf returns the times in which the lease was paused, so that it is no fault that its partitions had no owner.
function pausesOf(band) {
  const pauses = [];
  let from = band.start, paused = false;
  for (const event of band.events) {
    if (event.lease !== band.lease) continue;
    if (event.cause === "pause") {
      if (!paused) from = +new Date(event.at); // otherwise it was extended
      paused = true;
    }
    if (event.cause === "resume") {
      pauses.push([from, +new Date(event.at)]);
      paused = false;
    }
  }
  if (paused || pauses.length === 0 && isPaused({ name: band.lease })) pauses.push([from, band.end]);
  return pauses;
}

// giveSlots gives a color to each owner that is no longer live.
function giveSlots(band) {
  let next = Math.max(-1, ...state.clients.map(c => c.slot)) + 1;
  for (const slot of band.slots.values()) next = Math.max(next, slot + 1);
  for (const { owner } of band.spells.toReversed()) {
    if (owner === "" || state.byID.has(owner) || band.slots.has(owner)) continue;
    band.slots.set(owner, next);
    next++;
  }
}

// isSilent reports whether the owner of a spell has sent no heartbeat, and no client has evicted it.
const isSilent = spell => spell.cause === "silent";

const slotOf = (band, id) => state.byID.get(id)?.slot ?? band.slots.get(id);

function drawLegend(band) {
  const owners = [...new Set(band.spells.map(s => s.owner))].filter(id => id !== "").sort();
  const signature = JSON.stringify(owners.map(id => [id, slotOf(band, id)]));
  const gaps = [];
  if (band.spells.some(s => s.owner === "" && !s.paused && !isSilent(s))) gaps.push(["gap", "no owner"]);
  if (band.spells.some(isSilent)) gaps.push(["gap", "no live owner"]);
  if (band.spells.some(s => s.paused)) gaps.push(["gap paused", "no owner, paused"]);
  const gone = gaps.map(([kind, text]) => make("span", "who", make("span", "tag " + kind), text));
  const more = owners.length > 24 ? [make("span", "sub", many(owners.length - 24, "more owner"))] : [];
  const links = owners.slice(0, 24).map(id => whoLink(id, slotOf(band, id)));
  fill(band.legend, signature + gaps.join(), ...links, ...gone, ...more);
}

// ---- The picture.

// linesOf returns how many partitions the picture has, the first of them, and the height of each.
function linesOf(band) {
  const n = band.partition === null ? band.life.partitions : 1;
  const height = Math.max(n === 1 ? 28 : 64, Math.min(tallest, n * 14));
  return { n, first: band.partition ?? 0, height, each: height / n };
}

function draw(band) {
  if (!band.life || !state.status?.seen) return;
  nameOwners(band);
  const width = band.place.clientWidth;
  if (width === 0) return;
  const { n, first, height, each } = linesOf(band);
  const ratio = fit(band.canvas, width, lane + height);
  const c = band.canvas.getContext("2d");
  const [soft, bad, warn, text, quiet] = styles("--soft", "--bar-bad", "--bar-warn", "--text", "--quiet");
  c.clearRect(0, 0, band.canvas.width, band.canvas.height);
  const x = t => (Math.max(t, band.start) - band.start) / (band.end - band.start) * band.canvas.width;
  const y = p => Math.round((lane + (p - first) * each) * ratio);
  const space = each >= 6 ? ratio : 0;
  c.fillStyle = soft;
  c.fillRect(0, y(first), band.canvas.width, y(first + n) - y(first));
  const since = +new Date(band.life.since);
  if (since > band.start) { // before that, more happened than the server reads
    c.fillStyle = pattern(c, 1, soft, quiet, ratio);
    c.fillRect(0, y(first), x(since), y(first + n) - y(first));
  }
  // Gaps are drawn last, so that they are seen.
  const sorted = band.spells.toSorted((a, b) => (a.owner === "") - (b.owner === ""));
  for (const spell of sorted) {
    const left = Math.round(x(spell.from));
    const wide = Math.max(spell.owner === "" ? 2 * ratio : 1, Math.round(x(spell.to)) - left);
    const gap = spell.paused ? pattern(c, 1, soft, warn, ratio) : bad;
    c.fillStyle = spell.owner === "" ? gap : paint(c, slotOf(band, spell.owner) ?? 0, ratio);
    for (const [from, to] of spell.partitions) {
      if (space === 0) {
        c.fillRect(left, y(from), wide, Math.max(ratio, y(to + 1) - y(from)));
        continue;
      }
      for (let p = from; p <= to; p++) c.fillRect(left, y(p), wide, Math.max(1, y(p + 1) - y(p) - space));
    }
  }
  drawMarks(band, c, x, ratio);
  drawCursor(band, c, { x, y, first, ratio, text });
}

function drawMarks(band, c, x, ratio) {
  const kinds = ["bad", "warn", "good", "calm", "quiet", "verb"];
  const colors = Object.fromEntries(kinds.map(kind => [kind, styles("--" + kind)[0]]));
  const rank = { bad: 2, verb: 1 };
  const sorted = band.events.toSorted((a, b) => (rank[kindOf(a)] || 0) - (rank[kindOf(b)] || 0));
  for (const event of sorted) {
    const at = x(+new Date(event.at));
    c.fillStyle = colors[kindOf(event)];
    c.beginPath();
    c.moveTo(at - 4 * ratio, 1 * ratio);
    c.lineTo(at + 4 * ratio, 1 * ratio);
    c.lineTo(at, (lane - 3) * ratio);
    c.fill();
  }
}

function drawCursor(band, c, { x, y, first, ratio, text }) {
  const at = placeOf(band);
  if (!at) return;
  c.fillStyle = text;
  c.fillRect(Math.round(x(at.time)) - ratio / 2, 0, Math.max(1, ratio), band.canvas.height);
  const top = y(at.partition);
  c.strokeStyle = text;
  c.lineWidth = ratio;
  if (band.partition === null) c.strokeRect(0, top, band.canvas.width, Math.max(2 * ratio, y(at.partition + 1) - top));
}

// placeOf returns the time and the partition at the pointer or the cursor; null: neither is in the picture.
function placeOf(band) {
  if (band.pointed) return band.pointed;
  const event = band.events[band.event];
  return event ? { time: +new Date(event.at), partition: band.row + (band.partition ?? 0), event } : null;
}

// ---- The words.

function spellAt(band, { time, partition, event }) {
  const has = s => s.partitions.some(([first, last]) => first <= partition && partition <= last);
  const within = s => event ? s.from <= time && time <= s.to : s.from <= time && time < s.to;
  return band.spells.find(s => has(s) && within(s)); // the latest is first, so after an event it is the new owner
}

function describe(band) {
  const at = placeOf(band);
  const keys = "left and right for events" + (band.partition === null ? ", up and down for partitions." : ".");
  const hint = "Point at a time, or use the arrow keys: " + keys;
  const none = band.events.length === 0 ? "No event in this period." : hint;
  const words = at ? sentence(band, at) : [none];
  const text = words.map(w => typeof w === "string" ? w : plain(w.id)).join("");
  fill(band.note, text, ...words.map(w => typeof w === "string" ? w : who(w.id, slotOf(band, w.id))));
  band.place.setAttribute("aria-valuemin", "0");
  band.place.setAttribute("aria-valuemax", String(Math.max(0, band.events.length - 1)));
  band.place.setAttribute("aria-valuenow", String(Math.max(0, band.event)));
  band.place.setAttribute("aria-valuetext", text);
  band.more.hidden = !at || band.partition !== null;
  if (at) band.more.href = addressOf("leases", [band.lease, String(at.partition)]);
  const shown = at && nearest(band, at);
  for (const item of band.list.children) {
    const is = !!shown && item.event === shown.id;
    if (is && !item.classList.contains("shown")) reveal(band.list, item);
    item.classList.toggle("shown", is);
  }
}

// reveal scrolls the list, and not the page, to a line.
function reveal(list, item) {
  const top = item.offsetTop - list.offsetTop;
  if (top < list.scrollTop || top + item.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top;
}

function sentence(band, at) {
  const spell = spellAt(band, at);
  const words = [clock(at.time) + ", partition " + count(at.partition) + ": "];
  if (!spell) return [...words, "not known"];
  const none = isSilent(spell) ? "no live owner" :
    spell.paused ? "no owner, because the lease was paused," : "no owner";
  words.push(spell.owner === "" ? none : { id: spell.owner });
  words.push(spell.cause ? " since " + clock(spell.from) : " since before " + clock(spell.from));
  words.push(spell.to < band.end ? " until " + clock(spell.to) + ", for " + span(spell.to - spell.from) : " until now");
  return words;
}

// nearest returns the event of which the mark is at the place, if there is one.
function nearest(band, at) {
  if (at.event) return at.event;
  const reach = 6 / band.place.clientWidth * (band.end - band.start);
  let found = null, least = reach;
  for (const event of band.events) {
    const distance = Math.abs(new Date(event.at) - at.time);
    if (distance <= least) {
      found = event;
      least = distance;
    }
  }
  return found;
}

function listen(band) {
  const { place } = band;
  const update = () => {
    draw(band);
    describe(band);
  };
  place.addEventListener("pointermove", event => {
    if (!band.life) return;
    const box = place.getBoundingClientRect();
    const { n, first, each } = linesOf(band);
    const line = Math.floor((event.clientY - box.top - lane) / each);
    const time = band.start + (event.clientX - box.left) / box.width * (band.end - band.start);
    band.pointed = { time, partition: first + Math.min(n - 1, Math.max(0, line)) };
    update();
  });
  place.addEventListener("pointerleave", () => {
    band.pointed = null;
    update();
  });
  place.addEventListener("click", () => {
    if (band.partition === null && band.pointed) go(addressOf("leases", [band.lease, String(band.pointed.partition)]));
  });
  place.addEventListener("keydown", event => {
    if (!band.life || event.ctrlKey || event.metaKey || event.altKey) return;
    const { n } = linesOf(band);
    const last = band.events.length - 1, step = Math.ceil(n / rowsMost);
    const now = band.event < 0 ? last + 1 : band.event;
    const to = {
      ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 10, PageDown: now + 10, Home: 0, End: last,
    }[event.key];
    const line = { ArrowUp: band.row - step, ArrowDown: band.row + step }[event.key];
    if (event.key === "Enter" && band.event >= 0 && band.partition === null) {
      go(addressOf("leases", [band.lease, String(band.row)]));
    }
    if (to === undefined && line === undefined && event.key !== "Escape") return;
    event.preventDefault();
    band.pointed = null;
    if (event.key === "Escape") band.event = -1;
    else if (last < 0) return;
    else if (to !== undefined) band.event = Math.min(last, Math.max(0, to));
    else band.event = band.event < 0 ? last : band.event;
    if (line !== undefined) band.row = Math.min(n - 1, Math.max(0, line));
    update();
  });
}

// tableOf has the owners of the picture, for screen readers and for copying.
function tableOf(band) {
  const details = make("details", "numbers", make("summary", "", "The owners as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || !band.life) return;
    const heads = ["Partitions", "Owner", "From", "Until", ["n", "For"], "Began when it was"];
    const all = table("Owners through time", heads);
    all.tBodies[0].append(...band.spells.slice(0, mostSpells).map(s => row(
      rangesText(s.partitions),
      isSilent(s) ? "no live owner" : s.owner === "" ? "no owner" : name(s.owner),
      s.cause ? clock(s.from) : "before " + clock(s.from),
      s.to < band.end ? clock(s.to) : "now",
      ["n", span(s.to - s.from)],
      wordsOf(s.cause) || "before the period")));
    const more = band.spells.length - mostSpells;
    const note = more > 0 ? [make("p", "note", many(more, "more line") + " not shown: choose a shorter period.")] : [];
    details.replaceChildren(details.firstChild, scroll(all), ...note);
  });
  return details;
}
