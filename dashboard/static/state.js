// Draws the data of the polls. All names that processes choose go through name(), as text, never as markup.
"use strict";

// ---- Colors. Each owner has a color, a pattern that changes after ten owners, and letters: no two owners have the same three.

const palette = ["#4c8fd0", "#e0a33a", "#3aa887", "#c972a4", "#7b6fc4", "#d9663d", "#8fbf4d", "#57b9c9", "#a98258", "#d6c84a"];
const inks = palette.map(hex => {
  const [r, g, b] = [1, 3, 5].map(i => (parseInt(hex.slice(i, i + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.19 ? "#10161c" : "#ffffff";
});

const colorOf = slot => palette[slot % palette.length];
const inkOf = slot => inks[slot % palette.length];

function lettersOf(slot) {
  let letters = "";
  for (let n = slot + 1; n > 0; n = Math.floor((n - 1) / 26)) letters = String.fromCharCode(65 + (n - 1) % 26) + letters;
  return letters;
}

const patterns = new Map(); // by color and kind
// The kinds: 0 plain, 1 falling lines, 2 dots, 3 rising lines, 4 a grid.
function paint(context, slot, scale) {
  const kind = Math.floor(slot / palette.length) % 5;
  return kind === 0 ? colorOf(slot) : pattern(context, kind, colorOf(slot), inkOf(slot), scale);
}
function pattern(context, kind, ground, ink, scale) {
  const key = [kind, ground, ink, scale].join();
  if (!patterns.has(key)) {
    const tile = document.createElement("canvas"), side = Math.round(6 * scale);
    tile.width = tile.height = side;
    const c = tile.getContext("2d");
    c.fillStyle = ground;
    c.fillRect(0, 0, side, side);
    c.strokeStyle = c.fillStyle = ink;
    c.globalAlpha = 0.55;
    c.lineWidth = scale * 1.2;
    c.beginPath();
    for (const shift of [-side, 0, side]) {
      if (kind === 1) { c.moveTo(shift, 0); c.lineTo(shift + side, side); }
      if (kind === 3) { c.moveTo(shift, side); c.lineTo(shift + side, 0); }
    }
    if (kind === 4) { c.moveTo(0, side / 2); c.lineTo(side, side / 2); c.moveTo(side / 2, 0); c.lineTo(side / 2, side); }
    c.stroke();
    if (kind === 2) { c.beginPath(); c.arc(side / 2, side / 2, side / 4, 0, 7); c.fill(); }
    patterns.set(key, tile);
  }
  return context.createPattern(patterns.get(key), "repeat");
}

// ---- Elements.

const $ = id => document.getElementById(id);

// make("p", "note", "text", child) creates an element. Strings become text.
function make(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children);
  return e;
}

function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// Characters that are invisible or have effects: controls, direction marks, other format characters, unassigned characters, and spaces except the space.
const hidden = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const hiddenAll = new RegExp(hidden, "gu");

function escaped(c) {
  return { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[c] || "\\u{" + c.codePointAt(0).toString(16) + "}";
}

const plain = text => text.replace(hiddenAll, escaped); // for labels

// name shows a name that a process chose: isolated, with invisible characters as escapes.
function name(text) {
  const e = make("bdi", "name");
  for (let rest = text; rest !== "";) {
    const found = hidden.exec(rest), end = found ? found.index : rest.length;
    if (end > 0) e.append(rest.slice(0, end));
    if (!found) break;
    e.append(make("span", "esc", escaped(found[0])));
    rest = rest.slice(end + found[0].length);
  }
  return e;
}

// keyed gives parent one element for each item, in order. Elements are kept, so the focus stays.
function keyed(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map(e => [e.key, e]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let e = old.get(key);
    old.delete(key);
    if (!e) {
      e = create(item);
      e.key = key;
    }
    if (e === place) place = place.nextElementSibling;
    else parent.insertBefore(e, place);
    update(e, item);
  }
  for (const e of old.values()) {
    const focused = e.contains(document.activeElement);
    e.remove();
    if (focused) (parent.closest("section[tabindex]") || $("leases")).focus({ preventScroll: true }); // otherwise keyboard navigation would restart at the top
  }
}

// fill sets the children of a cell if they have changed.
function fill(e, signature, ...children) {
  if (e.signature === signature) return;
  e.signature = signature;
  e.replaceChildren(...children);
}

// ---- Words.

const count = n => n.toLocaleString("en");
const many = (n, one, more = one + "s") => count(n) + " " + (n === 1 ? one : more);

function span(ms) {
  const s = ms / 1000;
  if (s < 10) return Math.max(0, s).toFixed(1) + " s";
  if (s < 120) return Math.round(s) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " days";
}

function clock(time) {
  const t = new Date(time), day = new Date();
  const hours = t.toLocaleTimeString("en-GB");
  return t.toDateString() === day.toDateString() ? hours : t.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) + ", " + hours;
}

function rangesText(ranges, most = 12) {
  const words = ranges.slice(0, most).map(([first, last]) => first === last ? count(first) : count(first) + "–" + count(last));
  return words.join(", ") + (ranges.length > most ? ", …" : "");
}
const sizeOf = ranges => ranges.reduce((n, [first, last]) => n + last - first + 1, 0);

// ---- The data.

const state = {
  clients: [], bySession: new Map(), byID: new Map(), leases: [], ages: [], locks: null, events: null, overrides: [], schedules: null, health: null,
  older: [], olderOf: "", olderFailure: "", // events for a filter, their lease, and the error of reading them
  status: null,
  seenAt: 0, // time of the shown data, by this browser's clock; 0: no data
  link: "connecting", // or open, lost, denied
  filter: "", chosen: null, // the ID of the client whose partitions are highlighted
};

const slots = new Map(); // by ID: the number of a live client's color. It stays, even if another server with other numbers answers

const parts = {
  clients(list) {
    state.clients = list;
    const live = new Set(list.map(c => c.id));
    for (const id of slots.keys()) if (!live.has(id)) slots.delete(id);
    const taken = new Set(slots.values());
    for (const c of list) {
      while (!slots.has(c.id) && taken.has(c.slot)) c.slot++;
      c.slot = slots.get(c.id) ?? c.slot;
      slots.set(c.id, c.slot);
      taken.add(c.slot);
    }
    state.bySession = new Map(list.map(c => [c.session, c]));
    state.byID = new Map();
    for (const c of list) if (!state.byID.has(c.id) || !c.superseded) state.byID.set(c.id, c);
    if (state.chosen !== null && !state.byID.has(state.chosen)) state.chosen = null;
    later("leases", "clients", "locks", "events", "overrides", "summary");
  },
  leases({ names, changed }) { // the others are unchanged
    const known = new Map(state.leases.concat(changed).map(l => [l.name, l]));
    state.leases = names.map(n => known.get(n));
    later("leases", "clients", "summary");
  },
  ages(list) { state.ages = list; later("ages", "summary"); },
  locks(told) { state.locks = told; later("locks", "summary"); },
  events(told) { state.events = told; later("events"); },
  overrides(list) { state.overrides = list; later("overrides", "leases", "clients", "summary"); },
  schedules(told) { state.schedules = told; later("groups"); },
  health(told) { state.health = told; later("health", "summary"); },
};

// later draws once for all changes of one poll.
const due = new Set();
function later(...what) {
  if (due.size === 0) requestAnimationFrame(draw);
  for (const w of what) due.add(w);
}
function draw() {
  const now = [...due];
  due.clear();
  for (const what of now) draws[what]();
}

// who shows a client: its color, pattern and letters, and its name. As a button, it highlights its partitions.
function tag(slot) {
  const canvas = make("canvas", "tag"), ratio = Math.max(2, window.devicePixelRatio || 1);
  canvas.setAttribute("aria-hidden", "true");
  const w = 26, h = 21;
  canvas.width = w * ratio;
  canvas.height = h * ratio;
  const c = canvas.getContext("2d");
  c.fillStyle = paint(c, slot, ratio);
  c.fillRect(0, 0, canvas.width, canvas.height);
  letter(c, slot, canvas.width / 2, canvas.height / 2, 11.5 * ratio);
  return canvas;
}
function letter(c, slot, x, y, size) {
  const letters = lettersOf(slot);
  c.font = "600 " + size + "px system-ui, sans-serif";
  c.textAlign = "center";
  c.textBaseline = "middle";
  if (slot >= palette.length) { // letters on a pattern need a background
    c.lineWidth = size / 3;
    c.strokeStyle = colorOf(slot);
    c.lineJoin = "round";
    c.strokeText(letters, x, y + size / 14);
  }
  c.fillStyle = inkOf(slot);
  c.fillText(letters, x, y + size / 14);
}
function who(id, asButton) {
  const client = state.byID.get(id);
  const e = make(asButton ? "button" : "span", "who");
  if (client) e.append(tag(client.slot));
  e.append(name(id));
  if (asButton) {
    e.type = "button";
    e.title = "Highlight its partitions";
    e.setAttribute("aria-pressed", String(state.chosen === id));
    e.addEventListener("click", () => {
      state.chosen = state.chosen === id ? null : id;
      later("leases", "clients");
    });
  }
  return e;
}
const slotOf = id => state.byID.get(id)?.slot ?? -1;

// whoIn shows a client in a cell, and keeps the element while it is the same.
function whoIn(cell, id, asButton) {
  fill(cell, JSON.stringify([id, slotOf(id)]), id === "" ? make("span", "sub", "no owner") : who(id, asButton));
  if (asButton) cell.querySelector("button")?.setAttribute("aria-pressed", String(state.chosen === id));
}

// The page has buttons if it has operate.js, which only operators receive.
const operating = $("operate") !== null;

const matches = (...names) => state.filter === "" || names.some(n => plain(n).toLowerCase().includes(state.filter));

// ---- Leases.

const mostCards = 60, mostRows = 500;

// factsOf counts the partitions of a lease that move, and those without a live owner.
function factsOf(lease) {
  let moving = 0, orphans = 0;
  for (const h of lease.holdings) {
    const owner = state.bySession.get(h.owner_session), n = sizeOf(h.partitions);
    if (!owner || owner.expired) orphans += n;
    else if (h.owner_session !== h.target_session) moving += n;
  }
  return { moving, orphans };
}

// During a pause, partitions without an owner are no fault.
const isPaused = lease => state.overrides.some(w => w.verb === "pause" && w.lease === lease.name);

const draws = {
  leases() {
    const named = state.leases.filter(l => matches(l.name, ...(state.filter ? l.members.map(m => m.client) : [])));
    const large = named.filter(l => l.partitions > 1), single = named.filter(l => l.partitions === 1);
    keyed($("lease-list"), large.slice(0, mostCards), l => l.name, createLease, updateLease);
    $("singles").hidden = single.length === 0;
    keyed($("single-rows"), single.slice(0, mostRows), l => l.name, l => {
      const head = make("th", "", name(l.name));
      head.scope = "row";
      return make("tr", "", head, make("td"), make("td", "nowrap"), make("td", "n"), ...(operating ? [make("td", "n", operateButton({ kind: "lease", subject: l.name, partition: 0 }))] : []));
    }, (row, l) => {
      const [, owner, since, members] = row.children, h = l.holdings[0];
      whoIn(owner, h ? h.owner : "", true);
      const client = h && state.bySession.get(h.owner_session);
      setText(since, client && h.since ? clock(h.since) : "");
      setText(members, count(l.members.length));
      row.classList.toggle("expired", !client || client.expired);
    });
    const hiddenOnes = Math.max(0, large.length - mostCards) + Math.max(0, single.length - mostRows);
    setText($("leases-note"), state.status?.seen !== true ? "" : state.leases.length === 0 ? "There is no lease yet." :
      named.length === 0 ? "No lease and no member matches." : hiddenOnes > 0 ? many(hiddenOnes, "more lease") + " not shown: use the filter above." : "");
  },

  clients() {
    const part = new Map(); // by session: its numbers of partitions and leases
    for (const l of state.leases) for (const m of l.members) {
      const p = part.get(m.session) || { owned: 0, leases: 0 };
      p.owned += m.owned;
      p.leases++;
      part.set(m.session, p);
    }
    const data = c => Object.entries(c.metadata ?? {}).map(([key, value]) => key + "=" + (typeof value === "string" ? value : JSON.stringify(value))).join(" ");
    const shown = state.clients.filter(c => matches(c.id, c.host, data(c)));
    keyed($("client-rows"), shown.slice(0, mostRows), c => c.session, c => {
      const head = make("th", "", make("span"), " ", make("span"));
      head.scope = "row";
      const beat = make("td", "", make("div", "beat", make("span", "nowrap"), make("div", "track", make("span", "fill"))));
      beat.querySelector(".track").setAttribute("aria-hidden", "true");
      return make("tr", "", head, beat, make("td", "n"), make("td", "n"), make("td", "sub process"), make("td", "sub nowrap started"),
        ...(operating ? [make("td", "n", operateButton({ kind: "client", subject: c.id }))] : []));
    }, (row, c) => {
      const [head, , owned, leases, process, started] = row.children;
      row.session = c.session;
      whoIn(head.children[0], c.id, true);
      const marks = [];
      if (c.expired) marks.push(["bad", "expired: no heartbeat for its TTL"]);
      if (c.superseded) marks.push(["warn", "superseded: a newer process has its ID"]);
      if (c.evicted) marks.push(["warn", "evicted by an operator"]);
      for (const w of state.overrides) if (w.client === c.id && w.partition === undefined) marks.push(["warn", "override: " + plain(w.verb)]);
      if (c.fast_failover) marks.push(["", "fast failover"]);
      fill(head.children[1], JSON.stringify(marks), ...marks.map(([kind, text]) => make("span", "mark " + kind, text)));
      const p = part.get(c.session) || { owned: 0, leases: 0 };
      setText(owned, count(p.owned));
      setText(leases, count(p.leases));
      const metadata = data(c), characters = [...metadata];
      const short = characters.length > 60 ? characters.slice(0, 30).join("") + "…" + characters.slice(-29).join("") : metadata;
      fill(process, JSON.stringify([c.host, c.pid, metadata]), name(c.host), " " + c.pid, ...(short ? [" ", name(short)] : []));
      process.title = metadata;
      setText(started, clock(c.started));
    });
    setText($("clients-note"), state.status?.seen !== true ? "" : state.clients.length === 0 ? "There is no client." : shown.length === 0 ? "No client, host or metadata matches." :
      shown.length > mostRows ? many(shown.length - mostRows, "more client") + " not shown: use the filter above." : "");
    draws.ages();
  },

  // The age of each heartbeat.
  ages() {
    const age = new Map(state.clients.map((c, i) => [c.session, state.ages[i] || 0]));
    for (const row of $("client-rows").children) {
      const c = state.bySession.get(row.session);
      if (!c) continue;
      const ms = age.get(c.session), ttl = c.ttl_ns / 1e6, cell = row.children[1], part = Math.min(1, ms / ttl);
      setText(cell.querySelector("span"), span(ms) + " of " + span(ttl));
      cell.querySelector(".fill").style.transform = "scaleX(" + part.toFixed(3) + ")";
      cell.className = c.expired ? "expired" : part > 0.6 ? "late" : "";
    }
  },

  locks() {
    const told = state.locks;
    if (!told) return;
    const shown = told.locks.filter(l => matches(l.name, ...l.holders.map(h => h.client)));
    $("locks-card").hidden = shown.length === 0;
    keyed($("lock-rows"), shown, l => l.name, l => {
      const head = make("th", "", name(l.name));
      head.scope = "row";
      return make("tr", "", head, make("td"), make("td", "nowrap"), make("td", "n"));
    }, (row, l) => {
      const [, by, since, waiting] = row.children;
      const holders = l.holders.map(h => h.client);
      fill(by, JSON.stringify([holders.map(id => [id, slotOf(id)]), l.shared, l.holders.some(h => h.lost)]), ...holders.flatMap((id, i) => [i > 0 ? ", " : "", id === "" ? make("span", "sub", "an evicted client") : who(id)]),
        ...(holders.length === 0 ? [make("span", "sub", "no holder yet")] : []), ...(l.shared ? [" ", make("span", "mark", "shared")] : []),
        ...(l.holders.some(h => h.lost) ? [" ", make("span", "mark", "lost, not released")] : []));
      setText(since, l.holders.length > 0 ? clock(l.holders[0].since) : "");
      setText(waiting, count(l.waiting));
    });
    setText($("locks-note"), told.failure ? "The locks cannot be read: " + plain(told.failure) : shown.length === 0 ? (told.locks.length === 0 ? "No named lock is held or awaited." : "No lock and no holder matches.") :
      told.more ? "Only the first " + count(told.locks.length) + " by name are shown." : "");
  },

  events() {
    const told = state.events;
    if (!told) return;
    const shown = eventsThatMatch(told.events);
    $("event-list").hidden = shown.length === 0;
    const same = new Map(); // number of equal events
    const keys = shown.map(e => JSON.stringify([e, slotOf(e.from), slotOf(e.to)]));
    const numbered = shown.map((e, i) => [e, keys[i], i]).reverse().map(([e, key, i]) => {
      same.set(key, (same.get(key) || 0) + 1);
      return { e, i, key: key + same.get(key) };
    }).reverse();
    keyed($("event-list"), numbered, x => x.key, ({ e }) => {
      const time = make("time", "", clock(e.at)), text = make("span", "", make("span", "mark", plain(e.cause)));
      time.dateTime = e.at;
      if (e.lease) text.append(" ", name(e.lease));
      if (e.partitions.length > 0) text.append(" ", many(sizeOf(e.partitions), "partition"), " ", make("span", "sub", rangesText(e.partitions)));
      if (e.from) text.append(e.partitions.length > 0 ? " from " : " ", who(e.from));
      if (e.to) text.append(" to ", who(e.to));
      if (e.actor) text.append(" by ", name(e.actor));
      if (e.reason) text.append(": ", name(e.reason));
      return make("li", "", time, text);
    }, () => {});
    setText($("events-note"), told.failure ? "The events cannot be read: " + plain(told.failure) : told.events.length === 0 ? "There are no events yet." :
      filtered() ? count(shown.length) + " of the latest " + count(state.older.length || told.events.length) + (state.olderOf ? " of that lease" : "") + ", the latest first." + (state.olderFailure ? " Older ones cannot be read: " + plain(state.olderFailure) : "") :
      "The latest " + count(told.events.length) + ", the latest first.");
    const causes = [...new Set(told.events.concat(state.older).map(e => e.cause))].filter(c => c !== $("event-cause").value).sort();
    fill($("event-cause"), JSON.stringify([causes, $("event-cause").value]), ...["", $("event-cause").value, ...causes].filter((c, i) => i !== 1 || c !== "").map(c => {
      const option = make("option", "", c === "" ? "any" : plain(c));
      option.value = c;
      option.selected = c === $("event-cause").value;
      return option;
    }));
  },

  // Overrides are also shown at their leases and clients, so that their effect does not look like a fault.
  overrides() {
    $("overrides").hidden = state.overrides.length === 0;
    keyed($("override-list"), state.overrides, w => JSON.stringify([w, slotOf(w.client)]), w => {
      const time = make("time", "", clock(w.since)), text = make("span", "", make("span", "mark warn", plain(w.verb)), " ");
      time.dateTime = w.since;
      if (w.partition !== undefined) text.append("partition " + count(w.partition) + " of ");
      if (w.lease) text.append(name(w.lease));
      if (w.partition !== undefined) text.append(" to ");
      if (w.client) text.append(who(w.client));
      if (w.actor) text.append(" by ", name(w.actor));
      if (w.reason) text.append(": ", name(w.reason));
      text.append(make("span", "sub", w.until ? ", until " + clock(w.until) : ", until it is taken back"));
      if (operating && verbs[w.verb]?.back) text.append(" ", operateButton({ kind: verbs[w.verb].of, subject: w.lease || w.client, partition: w.partition }, verbs[w.verb].back));
      return make("li", "", time, text);
    }, () => {});
  },

  health() {
    if (!state.health) return;
    const rank = { fault: 0, warning: 1, note: 2, ok: 3 };
    const words = { fault: ["bad", "fault"], warning: ["warn", "warning"], note: ["", "note"], ok: ["good", "ok"] };
    const sorted = state.health.findings.toSorted((a, b) => rank[a.level] - rank[b.level]);
    $("finding-list").hidden = sorted.length === 0;
    let n = 0;
    keyed($("finding-list"), sorted.map(f => ({ f, key: JSON.stringify(f) + n++ })), x => x.key, ({ f }) => {
      const [kind, word] = words[f.level] || ["", f.level];
      const text = make("div", "", make("p", "", plain(f.text)));
      if (f.remedy) for (const line of f.remedy.split("\n")) text.append(make("p", "sub", plain(line)));
      return make("li", "", make("span", "", make("span", "mark " + kind, word)), make("span", "check", f.check), text);
    }, () => {});
    setText($("health-note"), "Checked at " + clock(state.health.at) + ".");
  },

  summary() {
    if (!state.status?.seen) return;
    let partitions = 0, moving = 0, orphans = 0, lost = 0;
    for (const l of state.leases) {
      const f = factsOf(l);
      partitions += l.partitions;
      moving += f.moving;
      orphans += f.orphans;
      if (!isPaused(l)) lost += f.orphans;
    }
    const silent = state.clients.filter(c => c.expired).length;
    const held = state.locks ? state.locks.locks.filter(l => l.holders.length > 0).length : 0;
    const waiting = state.locks ? state.locks.locks.reduce((n, l) => n + l.waiting, 0) : 0;
    const bad = state.health ? state.health.findings.filter(f => f.level === "fault").length : 0;
    const warned = state.health ? state.health.findings.filter(f => f.level === "warning").length : 0;
    const boxes = [
      ["Clients", count(state.clients.length - silent), silent ? count(silent) + " expired" : "all are live", silent ? "bad" : ""],
      ["Leases", count(state.leases.length), many(partitions, "partition"), ""],
      ["Without owner", count(orphans), orphans ? lost ? "of " + many(partitions, "partition") : "all of them paused" : "all have an owner", lost ? "bad" : ""],
      ["Moving", count(moving), moving ? "asked to hand over" : "no partition moves", ""],
      ["Locks held", count(held) + (state.locks?.more ? "+" : ""), waiting ? many(waiting, "client waits", "clients wait") : "no client waits", ""],
      ["Health", !state.health ? "…" : bad ? many(bad, "fault") : warned ? many(warned, "warning") : "good", !state.health ? "is being checked" : bad || warned ? "see below" : many(state.health.findings.length, "check"), bad ? "bad" : warned ? "warn" : ""],
    ];
    keyed($("summary"), boxes, b => b[0], b => make("div", "", make("dt", "", b[0]), make("dd"), make("dd")), (e, b) => {
      setText(e.children[1], b[1]);
      setText(e.children[2], b[2]);
      e.className = b[3];
    });
  },

  // The age of the data.
  state() {
    const link = state.link;
    const stale = link !== "open" || !!state.status?.stale || state.seenAt > 0 && Date.now() - state.seenAt > old; // a server that has just started may have no data
    const since = state.seenAt > 0 ? clock(state.seenAt) : "";
    const kind = stale && (state.seenAt > 0 || link !== "connecting" || state.status?.failure) ? "stale" : state.seenAt > 0 ? "live" : "connecting";
    const quiet = kind === "stale" && link === "connecting"; // it was away for a moment, or comes back
    $("state").dataset.kind = quiet ? "connecting" : kind;
    setText($("state-text"), quiet || kind === "connecting" ? "Connecting" : kind === "live" ? "Live" : since ? "Stale since " + since : "No data");
    const why = link === "denied" ? "You may not look any more. " + signIn :
      link === "lost" ? "The dashboard does not answer. This page tries again automatically." : "The database does not answer as it should. The dashboard tries again each second.";
    const show = kind === "stale" && !quiet;
    if (show) setText($("banner-text"), why + (since ? " What you see is from " + since + "." : " There is no data yet."));
    $("banner").hidden = !show;
    const failure = link === "open" && state.status?.failure || "";
    $("banner-more").hidden = failure === "";
    setText($("banner-failure"), plain(failure).replaceAll("\\n", "\n"));
    $("main").classList.toggle("stale", show && state.seenAt > 0);
    const told = state.status;
    if (told?.server) {
      const unaccepted = told.server.timeline !== told.server.accepted_timeline;
      setText($("server"), "Schema version " + told.schema_version + ", server generation " + told.server.generation +
        (unaccepted ? ". The server is not accepted: no partition moves until a client has watched it for the longest TTL." : "."));
    }
  },
};

// ---- The filter of events. Older events than those of the polls are read once, when the filter changes: of one lease, if the filter is its name.

const eventFilter = () => [$("event-lease").value.toLowerCase(), $("event-client").value.toLowerCase(), $("event-cause").value];
const filtered = () => eventFilter().some(text => text !== "");

function eventsThatMatch(latest) {
  if (!filtered()) return latest;
  const [lease, client, cause] = eventFilter(), has = (of, text) => plain(of || "").toLowerCase().includes(text);
  const known = new Map(); // number of equal events
  for (const e of latest) known.set(JSON.stringify(e), (known.get(JSON.stringify(e)) || 0) + 1);
  const older = state.older.filter(e => {
    const n = known.get(JSON.stringify(e)) || 0;
    known.set(JSON.stringify(e), n - 1);
    return n <= 0;
  });
  return latest.concat(older).filter(e => (has(e.lease, lease) || !e.lease && state.older.some(o => o.id === e.id)) && (client === "" || has(e.from, client) || has(e.to, client)) && (cause === "" || e.cause === cause));
}

let filterTimer = 0, filterTurn = 0;
function filterEvents() {
  clearTimeout(filterTimer);
  const turn = ++filterTurn;
  state.older = [];
  state.olderFailure = "";
  state.olderOf = "";
  later("events");
  if (!filtered()) return;
  filterTimer = setTimeout(async () => {
    const of = state.leases.find(l => plain(l.name).toLowerCase() === eventFilter()[0])?.name || "";
    const answer = await get("events", { lease: of });
    if (turn !== filterTurn) return;
    Object.assign(state, { older: answer.events || [], olderOf: of, olderFailure: answer.failure || answer.text || "" });
    later("events");
  }, 300);
}

// ---- The map of a lease: one cell for each partition. For keyboards and screen readers it is a slider.

const recent = 4000; // milliseconds for which a moved partition is marked

function createLease(lease) {
  const id = "lease-" + Math.random().toString(36).slice(2);
  const title = make("h3", "", name(lease.name));
  title.id = id;
  const map = make("canvas", "map");
  map.tabIndex = 0;
  map.setAttribute("role", "slider");
  map.setAttribute("aria-label", "Partitions of " + plain(lease.name) + ": use the arrow keys");
  const heads = [["", "Member"], ["n", "Owns"], ["n", "Share"], ["n", "Weight"], ["n", "Moves"]].map(([kind, text]) => {
    const th = make("th", kind, text);
    th.scope = "col";
    return th;
  });
  const table = make("table", "", make("thead", "", make("tr", "", ...heads)), make("tbody"));
  table.setAttribute("aria-labelledby", id);
  const cell = make("p", "cell");
  const why = make("button", "act", "Why?"), reasons = make("ul", "reasons");
  why.type = "button";
  why.setAttribute("aria-label", "Why does this client own the partition?");
  reasons.setAttribute("role", "status");
  const e = make("article", "card lease", make("header", "", title, make("p", "facts")),
    make("div", "parts", make("div", "", map, make("div", "line", cell, why), reasons), make("div", "members", table, make("p", "note"))));
  e.setAttribute("aria-labelledby", id);
  Object.assign(e, { map, cell, why, reasons, cursor: -1, explained: -1, flashes: new Map(), owners: null });
  why.addEventListener("click", () => explain(e));
  if (operating) e.querySelector("header").append(operateButton({ kind: "lease", subject: lease.name, card: e }));
  const at = event => {
    const box = map.getBoundingClientRect(), g = e.grid;
    if (!g) return -1;
    const column = Math.floor((event.clientX - box.left) / g.cell), row = Math.floor((event.clientY - box.top) / g.cell);
    const p = row * g.columns + column;
    return column >= 0 && column < g.columns && p >= 0 && p < e.lease.partitions ? p : -1;
  };
  map.addEventListener("pointermove", event => { e.pointed = at(event); describe(e); });
  map.addEventListener("pointerleave", () => { e.pointed = -1; describe(e); });
  map.addEventListener("click", event => { e.cursor = at(event); later("leases"); });
  map.addEventListener("focus", () => { if (e.cursor < 0 && map.matches(":focus-visible")) move(e, 0); });
  map.addEventListener("keydown", event => {
    const g = e.grid, now = Math.max(0, e.cursor), last = e.lease.partitions - 1;
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, ArrowDown: now + g.columns, ArrowUp: now - g.columns, Home: 0, End: last, PageDown: now + 10 * g.columns, PageUp: now - 10 * g.columns, Escape: -1 }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move(e, event.key === "Escape" ? -1 : Math.min(last, Math.max(0, to)));
  });
  sizes.observe(map.parentElement);
  return e;
}

function move(e, to) {
  e.cursor = to;
  drawMap(e);
  describe(e);
}

const sizes = new ResizeObserver(() => later("leases"));

function updateLease(e, lease) {
  e.lease = lease;
  const { moving, orphans } = factsOf(lease);
  const facts = [make("span", "", many(lease.partitions, "partition") + ", " + many(lease.members.length, "member"))];
  if (moving) facts.push(", ", make("span", "warn", count(moving) + " asked to hand over"));
  if (orphans) facts.push(", ", make("span", isPaused(lease) ? "warn" : "bad", count(orphans) + " without a live owner"));
  for (const w of state.overrides) if (w.lease === lease.name) facts.push(", ", make("span", "warn", "override: " + plain(w.verb) + (w.partition === undefined ? "" : " of " + count(w.partition))));
  if (lease.due) facts.push(", a plan is due");
  fill(e.querySelector(".facts"), facts.map(f => f.textContent ?? f).join(""), ...facts);
  keyed(e.querySelector("tbody"), lease.members.slice(0, mostRows), m => m.session, () => {
    const head = make("th");
    head.scope = "row";
    return make("tr", "", head, make("td", "n"), make("td", "n"), make("td", "n"), make("td", "n sub"));
  }, (row, m) => {
    const [head, owned, share, weight, moves] = row.children;
    whoIn(head, m.client, true);
    setText(owned, count(m.owned));
    setText(share, Number.isInteger(m.share) ? count(m.share) : m.share.toFixed(1));
    setText(weight, m.weight === 0 ? "0, gets none" : count(m.weight));
    setText(moves, [m.outgoing ? "−" + count(m.outgoing) : "", m.incoming ? "+" + count(m.incoming) : ""].join(" ").trim());
    row.classList.toggle("expired", !!state.bySession.get(m.session)?.expired);
  });
  setText(e.querySelector(".members .note"), lease.members.length === 0 ? "The lease has no members: start a process that joins it." :
    lease.members.length > mostRows ? many(lease.members.length - mostRows, "more member") + " not shown." : "");
  spread(e);
  drawMap(e);
  describe(e);
}

// spread sets e.at to the holding of each partition, and marks partitions that have moved.
function spread(e) {
  if (e.shown === e.lease) return;
  e.shown = e.lease;
  const at = new Array(e.lease.partitions).fill(null), owners = new Array(e.lease.partitions).fill("0");
  for (const h of e.lease.holdings) for (const [first, last] of h.partitions) for (let p = first; p <= last && p < at.length; p++) {
    at[p] = h;
    owners[p] = h.owner_session;
  }
  if (e.owners) {
    const now = Date.now();
    let moved = 0;
    for (let p = 0; p < owners.length; p++) if (owners[p] !== e.owners[p]) {
      e.flashes.set(p, now);
      moved++;
    }
    if (moved > 0) setTimeout(() => drawMap(e), recent + 50);
  }
  e.at = at;
  e.owners = owners;
}

function cellSize(n, width) {
  for (const size of [30, 26, 22, 18, 15, 12, 10, 8, 7, 6, 5, 4, 3]) {
    if (Math.ceil(n / Math.floor(width / size)) * size <= Math.max(120, Math.min(340, width * 0.9))) return size;
  }
  return width < 500 ? 3 : 4;
}

function drawMap(e) {
  const width = e.map.parentElement.clientWidth, n = e.lease.partitions;
  if (width === 0) return;
  const least = cellSize(n, width), full = Math.floor(width / least), columns = Math.min(n, full), rows = Math.ceil(n / columns);
  const cell = n > full ? width / full : least; // rows end at the edge of the map
  e.grid = { cell, columns };
  const ratio = window.devicePixelRatio || 1, c = e.map.getContext("2d");
  const w = Math.round(width * ratio), h = Math.round(rows * cell * ratio);
  if (e.map.width !== w || e.map.height !== h) {
    e.map.width = w;
    e.map.height = h;
    e.map.style.height = rows * cell + "px";
  }
  const style = getComputedStyle(document.documentElement), color = n => style.getPropertyValue(n).trim();
  const text = color("--text"), bad = color("--bad"), soft = color("--soft"), card = color("--card");
  c.clearRect(0, 0, w, h);
  const gap = cell >= 15 ? 2 * ratio : cell >= 7 ? ratio : cell >= 5 ? ratio / 2 : 0;
  const now = Date.now(), nobody = pattern(c, 1, soft, bad, ratio);
  const paints = new Map();
  const paintOf = slot => paints.get(slot) ?? (paints.set(slot, paint(c, slot, ratio)), paints.get(slot));
  for (let p = 0; p < n; p++) {
    const x = Math.round((p % columns) * cell * ratio), y = Math.round(Math.floor(p / columns) * cell * ratio);
    const side = Math.max(1, Math.round(cell * ratio - gap)), holding = e.at[p];
    const owner = holding && state.bySession.get(holding.owner_session), target = holding && state.bySession.get(holding.target_session);
    c.globalAlpha = state.chosen !== null && owner?.id !== state.chosen ? 0.16 : 1;
    c.fillStyle = owner ? paintOf(owner.slot) : nobody;
    c.fillRect(x, y, side, side);
    if (owner?.expired) { // it still owns the partition, but sends no heartbeats
      c.fillStyle = nobody;
      c.fillRect(x, y + side / 2, side, side / 2);
    }
    if (owner && target && owner !== target) { // moving: the corner has the color of the next owner
      c.beginPath();
      c.moveTo(x + side, y);
      c.lineTo(x + side, y + side);
      c.lineTo(x, y + side);
      c.closePath();
      c.fillStyle = card;
      c.fill();
      c.save();
      c.translate(gap / 2 + ratio, gap / 2 + ratio);
      c.clip();
      c.fillStyle = paintOf(target.slot);
      c.fill();
      c.restore();
    } else if (cell >= 18 && owner && !owner.expired) {
      letter(c, owner.slot, x + side / 2, y + side / 2, Math.min(cell * 0.44, 12) * ratio);
    }
    const flash = e.flashes.get(p);
    if (flash !== undefined && now - flash < recent) {
      c.lineWidth = Math.max(ratio, Math.min(2.5 * ratio, cell * ratio / 5));
      c.strokeStyle = text;
      c.strokeRect(x + c.lineWidth / 2, y + c.lineWidth / 2, side - c.lineWidth, side - c.lineWidth);
    } else if (flash !== undefined) e.flashes.delete(p);
  }
  c.globalAlpha = 1;
  if (e.cursor >= 0) {
    const x = (e.cursor % columns) * cell * ratio, y = Math.floor(e.cursor / columns) * cell * ratio;
    for (const [color, inset, width] of [[card, 0, 4], [text, 0, 2]]) {
      c.strokeStyle = color;
      c.lineWidth = width * ratio;
      c.strokeRect(x + inset + c.lineWidth / 2, y + inset + c.lineWidth / 2, Math.max(cell * ratio - gap, 4) - c.lineWidth, Math.max(cell * ratio - gap, 4) - c.lineWidth);
    }
  }
}

// describe shows the partition at the pointer or the cursor.
function describe(e) {
  const p = e.pointed >= 0 ? e.pointed : e.cursor, map = e.map;
  e.why.hidden = e.cursor < 0;
  if (e.explained !== e.cursor) {
    e.explained = -1;
    e.reasons.replaceChildren();
  }
  map.setAttribute("aria-valuemin", "0");
  map.setAttribute("aria-valuemax", String(e.lease.partitions - 1));
  map.setAttribute("aria-valuenow", String(Math.max(0, e.cursor)));
  map.setAttribute("aria-valuetext", e.cursor < 0 ? "none is chosen" : sentence(e, e.cursor).map(x => typeof x === "string" ? x : plain(x.id)).join(""));
  if (p < 0) {
    fill(e.cell, "", "Point at a partition, or use the arrow keys, to see its owner.");
    return;
  }
  const words = sentence(e, p);
  fill(e.cell, JSON.stringify(words.map(x => typeof x === "string" ? x : [x.id, slotOf(x.id)])), ...words.map(x => typeof x === "string" ? x : who(x.id)));
}

// explain asks the server why a client owns the chosen partition.
async function explain(e) {
  const p = e.explained = e.cursor;
  e.reasons.replaceChildren(make("li", "", "Checking."));
  const answer = await get("explain", { lease: e.lease.name, partition: p });
  if (e.explained === p) e.reasons.replaceChildren(...(answer.reasons || [answer.text]).map(text => make("li", "", plain(text))));
}

// denies reports whether an unexpected answer means that the user must sign in: our own 403, or from a login in front a redirect, a 401, or a page. Another answer of a proxy, for
// example 404 or 421 of an ingress without a server behind it, does not mean that.
const denies = answer => answer.type === "opaqueredirect" || answer.ok || [401, 403, 407].includes(answer.status);
const signIn = "Sign in again, in another tab. Then this page continues, and keeps your input.";

// get returns the content of an answer, or an object whose text is the reason why there is none.
async function get(path, query) {
  try {
    const answer = await fetch(path + "?" + new URLSearchParams(query), { redirect: "manual", cache: "no-store" });
    if ((answer.headers.get("Content-Type") || "").startsWith("application/json")) return await answer.json();
    return { text: denies(answer) ? "You may not look any more. " + signIn : "The dashboard does not answer." };
  } catch {
    return { text: "The dashboard does not answer." };
  }
}

function sentence(e, p) {
  const h = e.at[p], words = ["Partition " + count(p) + ": "];
  const owner = h && state.bySession.get(h.owner_session), target = h && state.bySession.get(h.target_session);
  if (owner) {
    words.push({ id: owner.id });
    if (owner.expired) words.push(", which has expired");
    else if (owner !== target) words.push(...(target ? [", moving to ", { id: target.id }] : [", asked to hand it over"]));
  } else if (h && h.last_owner) words.push("no owner, last ", { id: h.last_owner });
  else words.push("no owner yet");
  return words;
}

// ---- The polls. Each second the page sends the versions of its parts, and receives the parts that differ. In the background it does not poll.

const versions = {}; // by part
const patience = 8000; // ms, limit for an answer
const old = 4000; // ms, age from which data is stale
let polling = false, timer = 0, failures = 0;

async function poll() {
  clearTimeout(timer);
  if (polling || document.hidden) return;
  polling = true;
  const { link, told } = await ask();
  polling = false;
  timer = setTimeout(poll, link === "open" ? (told.status.seen || told.status.failure ? 1000 : 200) : link === "denied" ? 15000 : Math.min(10000, 500 * 2 ** failures++));
  state.link = link;
  later("state");
  if (sharpFor !== window.devicePixelRatio) { // the window moved to another screen, or was zoomed
    sharpFor = window.devicePixelRatio;
    later("leases");
  }
  if (!told) return;
  failures = 0;
  state.status = told.status;
  if (told.status.seen) state.seenAt = Date.now() - told.status.age_ms;
  for (const [part, { version, content }] of Object.entries(told.parts)) {
    parts[part]?.(content); // the server may have another version
    versions[part] = version;
  }
}

// ask returns the result of a poll, and the answer if there is one.
async function ask() {
  try {
    const answer = await fetch("poll?" + new URLSearchParams(versions), { redirect: "manual", cache: "no-store", signal: AbortSignal.timeout(patience) });
    const isJSON = (answer.headers.get("Content-Type") || "").startsWith("application/json"), told = answer.ok && isJSON ? await answer.json() : null;
    return told?.status ? { link: "open", told } : { link: denies(answer) ? "denied" : "lost" };
  } catch { // the network, or the server, is away
    return { link: "lost" };
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  if (state.link !== "denied") state.link = "connecting";
  poll();
  later("state");
});
$("filter").addEventListener("input", event => {
  state.filter = event.target.value.toLowerCase();
  later("leases", "clients", "locks");
});
for (const id of ["event-lease", "event-client", "event-cause"]) $(id).addEventListener("input", filterEvents);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => later("leases"));
let sharpFor = window.devicePixelRatio;
document.addEventListener("DOMContentLoaded", () => poll()); // after the other files are loaded
