// The map of a lease: one cell for each partition, in the color of its owner. For keyboards and screen readers
// it is a slider.

import { button, fill, make, plain } from "./dom.js";
import { addressOf, link } from "./address.js";
import { letter, paint, pattern, styles } from "./colors.js";
import { get, slotOf, state } from "./state.js";
import { count } from "./words.js";
import { who } from "./owners.js";

const recent = 4000; // milliseconds for which a moved partition is marked

// A brush paints in a context: the color of each slot, and that of what has no owner.
function brushOf(context, ratio) {
  const [text, bad, soft, card] = styles("--text", "--bad", "--soft", "--card");
  const known = new Map();
  const of = slot => {
    if (!known.has(slot)) known.set(slot, paint(context, slot, ratio));
    return known.get(slot);
  };
  return { of, nobody: pattern(context, 1, soft, bad, ratio), text, card };
}

// fit gives a canvas as many pixels as the screen has for its size, and returns how many there are for one of CSS.
export function fit(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.round(width * ratio), h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = height + "px";
  }
  return ratio;
}

// drawSmallMap draws a lease as one line.
export function drawSmallMap(canvas, lease) {
  const width = canvas.clientWidth;
  if (width === 0) return;
  const ratio = fit(canvas, width, 14);
  const c = canvas.getContext("2d");
  const brush = brushOf(c, ratio);
  c.clearRect(0, 0, canvas.width, canvas.height);
  const at = p => Math.round(p / lease.partitions * canvas.width);
  const gap = canvas.width / lease.partitions > 5 * ratio ? ratio : 0;
  const liveOf = holding => {
    const owner = state.bySession.get(holding.owner_session);
    return owner && !owner.expired ? owner : null;
  };
  // What has no owner is drawn last, so that it is seen.
  const sorted = lease.holdings.toSorted((a, b) => !liveOf(a) - !liveOf(b));
  for (const holding of sorted) {
    const owner = liveOf(holding);
    c.fillStyle = owner ? brush.of(owner.slot) : brush.nobody;
    for (const [first, last] of holding.partitions) {
      for (let p = first; p <= last; p++) {
        c.fillRect(at(p), 0, Math.max(ratio, at(p + 1) - at(p) - gap), canvas.height);
      }
    }
  }
}

// newMap returns the map with its text line. update(lease) draws it anew.
export function newMap(lease) {
  const canvas = make("canvas", "map");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "slider");
  canvas.setAttribute("aria-label", "Partitions of " + plain(lease.name) + ": use the arrow keys");
  const cell = make("p", "cell");
  const reasons = make("ul", "reasons");
  reasons.setAttribute("role", "status");
  const map = {
    canvas, cell, reasons, lease, cursor: -1, pointed: -1, explained: -1,
    grid: null, at: [], owners: null, seen: null, flashes: new Map(),
  };
  map.why = button("Why?", () => explain(map), "Why does this client own the partition?");
  map.more = link("", "Its past");
  map.element = make("div", "", canvas, make("div", "line", cell, map.why, map.more), reasons);
  map.update = lease => {
    map.lease = lease;
    if (map.cursor >= lease.partitions) map.cursor = -1; // the lease was dropped, and made again with fewer
    spread(map);
    drawMap(map);
    describe(map);
  };
  canvas.map = map;
  listen(map);
  return map;
}

function listen(map) {
  const { canvas } = map;
  const at = event => {
    const box = canvas.getBoundingClientRect();
    const grid = map.grid;
    if (!grid) return -1;
    const column = Math.floor((event.clientX - box.left) / grid.cell);
    const line = Math.floor((event.clientY - box.top) / grid.cell);
    const p = line * grid.columns + column;
    return column >= 0 && column < grid.columns && p >= 0 && p < map.lease.partitions ? p : -1;
  };
  canvas.addEventListener("pointermove", event => {
    map.pointed = at(event);
    describe(map);
  });
  canvas.addEventListener("pointerleave", () => {
    map.pointed = -1;
    describe(map);
  });
  canvas.addEventListener("click", event => move(map, at(event)));
  canvas.addEventListener("focus", () => {
    if (map.cursor < 0 && canvas.matches(":focus-visible")) move(map, 0);
  });
  canvas.addEventListener("keydown", event => {
    const now = Math.max(0, map.cursor), last = map.lease.partitions - 1, columns = map.grid.columns;
    const to = {
      ArrowRight: now + 1, ArrowLeft: now - 1, ArrowDown: now + columns, ArrowUp: now - columns, Home: 0, End: last,
      PageDown: now + 10 * columns, PageUp: now - 10 * columns, Escape: -1,
    }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move(map, event.key === "Escape" ? -1 : Math.min(last, Math.max(0, to)));
  });
}

function move(map, to) {
  map.cursor = to;
  drawMap(map);
  describe(map);
}

// spread sets map.at to the holding of each partition, and marks partitions that have moved.
function spread(map) {
  if (map.seen === map.lease) return;
  map.seen = map.lease;
  const at = new Array(map.lease.partitions).fill(null);
  const owners = new Array(map.lease.partitions).fill("0");
  for (const holding of map.lease.holdings) {
    for (const [first, last] of holding.partitions) {
      for (let p = first; p <= last && p < at.length; p++) {
        at[p] = holding;
        owners[p] = holding.owner_session;
      }
    }
  }
  if (map.owners) {
    const now = Date.now();
    const moved = owners.flatMap((owner, p) => owner === map.owners[p] ? [] : [p]);
    for (const p of moved) map.flashes.set(p, now);
    if (moved.length > 0) setTimeout(() => drawMap(map), recent + 50);
  }
  map.at = at;
  map.owners = owners;
}

function cellSize(n, width) {
  const tall = Math.max(120, Math.min(340, width * 0.9));
  const fits = size => Math.ceil(n / Math.floor(width / size)) * size <= tall;
  return [30, 26, 22, 18, 15, 12, 10, 8, 7, 6, 5, 4, 3].find(fits) || (width < 500 ? 3 : 4);
}

function drawMap(map) {
  const { canvas } = map;
  const width = canvas.parentElement.clientWidth, n = map.lease.partitions;
  if (width === 0) return;
  const least = cellSize(n, width), full = Math.floor(width / least);
  const columns = Math.min(n, full), lines = Math.ceil(n / columns);
  const cell = n > full ? width / full : least; // lines end at the edge of the map
  map.grid = { cell, columns };
  const ratio = fit(canvas, width, lines * cell);
  const c = canvas.getContext("2d");
  c.clearRect(0, 0, canvas.width, canvas.height);
  const brush = brushOf(c, ratio);
  const gap = cell >= 15 ? 2 * ratio : cell >= 7 ? ratio : cell >= 5 ? ratio / 2 : 0;
  const isChosen = map.lease.members.some(m => m.client === state.chosen);
  for (let p = 0; p < n; p++) {
    const x = Math.round((p % columns) * cell * ratio), y = Math.round(Math.floor(p / columns) * cell * ratio);
    drawCell(map, c, brush, p, { x, y, side: Math.max(1, Math.round(cell * ratio - gap)), gap, cell, ratio, isChosen });
  }
  c.globalAlpha = 1;
  if (map.cursor >= 0) drawCursor(map, c, brush, Math.max(cell * ratio - gap, 4), ratio);
}

function drawCell(map, c, brush, p, { x, y, side, gap, cell, ratio, isChosen }) {
  const holding = map.at[p];
  const owner = holding && state.bySession.get(holding.owner_session);
  const target = holding && state.bySession.get(holding.target_session);
  c.globalAlpha = isChosen && owner?.id !== state.chosen ? 0.16 : 1;
  c.fillStyle = owner ? brush.of(owner.slot) : brush.nobody;
  c.fillRect(x, y, side, side);
  if (owner?.expired) { // it still owns the partition, but sends no heartbeats
    c.fillStyle = brush.nobody;
    c.fillRect(x, y + side / 2, side, side / 2);
  }
  if (owner && target && owner !== target) {
    drawCorner(c, brush, target.slot, { x, y, side, gap, ratio });
  } else if (cell >= 18 && owner && !owner.expired) {
    letter(c, owner.slot, x + side / 2, y + side / 2, Math.min(cell * 0.44, 12) * ratio);
  }
  const flash = map.flashes.get(p);
  if (flash === undefined) return;
  if (Date.now() - flash >= recent) {
    map.flashes.delete(p);
    return;
  }
  c.lineWidth = Math.max(ratio, Math.min(2.5 * ratio, cell * ratio / 5));
  c.strokeStyle = brush.text;
  c.strokeRect(x + c.lineWidth / 2, y + c.lineWidth / 2, side - c.lineWidth, side - c.lineWidth);
}

// drawCorner draws a partition that moves: the corner has the color of the next owner.
function drawCorner(c, brush, slot, { x, y, side, gap, ratio }) {
  c.beginPath();
  c.moveTo(x + side, y);
  c.lineTo(x + side, y + side);
  c.lineTo(x, y + side);
  c.closePath();
  c.fillStyle = brush.card;
  c.fill();
  c.save();
  c.translate(gap / 2 + ratio, gap / 2 + ratio);
  c.clip();
  c.fillStyle = brush.of(slot);
  c.fill();
  c.restore();
}

function drawCursor(map, c, brush, side, ratio) {
  const { cell, columns } = map.grid;
  const x = (map.cursor % columns) * cell * ratio, y = Math.floor(map.cursor / columns) * cell * ratio;
  for (const [color, width] of [[brush.card, 4], [brush.text, 2]]) {
    c.strokeStyle = color;
    c.lineWidth = width * ratio;
    c.strokeRect(x + c.lineWidth / 2, y + c.lineWidth / 2, side - c.lineWidth, side - c.lineWidth);
  }
}

// describe shows the partition at the pointer or the cursor.
function describe(map) {
  const p = map.pointed >= 0 ? map.pointed : map.cursor;
  map.why.hidden = map.cursor < 0;
  map.more.hidden = map.cursor < 0;
  map.more.href = addressOf("leases", [map.lease.name, String(Math.max(0, map.cursor))]);
  if (map.explained !== map.cursor) {
    map.explained = -1;
    map.reasons.replaceChildren();
  }
  map.canvas.setAttribute("aria-valuemin", "0");
  map.canvas.setAttribute("aria-valuemax", String(map.lease.partitions - 1));
  map.canvas.setAttribute("aria-valuenow", String(Math.max(0, map.cursor)));
  const words = map.cursor < 0 ? ["none is chosen"] : sentence(map, map.cursor);
  map.canvas.setAttribute("aria-valuetext", words.map(w => typeof w === "string" ? w : plain(w.id)).join(""));
  if (p < 0) {
    fill(map.cell, "", "Point at a partition, or use the arrow keys, to see its owner.");
    return;
  }
  const said = sentence(map, p);
  const signature = JSON.stringify(said.map(w => typeof w === "string" ? w : [w.id, slotOf(w.id)]));
  fill(map.cell, signature, ...said.map(w => typeof w === "string" ? w : who(w.id)));
}

function sentence(map, p) {
  const holding = map.at[p];
  const words = ["Partition " + count(p) + ": "];
  const owner = holding && state.bySession.get(holding.owner_session);
  const target = holding && state.bySession.get(holding.target_session);
  if (owner) {
    words.push({ id: owner.id });
    if (owner.expired) words.push(", which has expired");
    else if (owner !== target && target) words.push(", moving to ", { id: target.id });
    else if (owner !== target) words.push(", asked to hand it over");
  } else if (holding && holding.last_owner) words.push("no owner, last ", { id: holding.last_owner });
  else words.push("no owner yet");
  return words;
}

// explain asks the server why a client owns the chosen partition.
async function explain(map) {
  const p = map.explained = map.cursor;
  map.reasons.replaceChildren(make("li", "", "Checking."));
  const answer = await get("explain", { lease: map.lease.name, partition: p });
  if (map.explained !== p) return;
  const reasons = answer.reasons || [answer.text];
  map.reasons.replaceChildren(...reasons.map(text => make("li", "", plain(text))));
}
