// The page: it shows the screen of the address, and says how old the data is.

import { $, countOn, make, plain, setText } from "./dom.js";
import { addressOf, here, link, named, root } from "./address.js";
import { endReadings, isStale, later, onChange, operating, poll, signIn, state } from "./state.js";
import { clock } from "./words.js";
import { overview } from "./overview.js";
import { leases } from "./leases.js";
import { lease } from "./lease.js";
import { partition } from "./partition.js";
import { clients } from "./clients.js";
import { client } from "./client.js";
import { consumers } from "./consumers.js";
import { consumer } from "./consumer.js";
import { schedules } from "./schedules.js";
import { schedule } from "./schedule.js";
import { jobs } from "./jobs.js";
import { locks } from "./locks.js";
import { events } from "./events.js";

// The screens by the first part of their address, and in each by the number of names that follow. A screen
// is a function of its address, which returns its element, the parts that it shows, and what draws it.
const screens = {
  "": ["Overview", [overview]],
  leases: ["Leases", [leases, lease, partition]],
  clients: ["Clients", [clients, client]],
  schedules: ["Schedules", [schedules, schedules, schedule]],
  jobs: ["Jobs", [jobs, jobs]],
  consumers: ["Consumers", [consumers, consumer]],
  locks: ["Locks", [locks]],
  events: ["Events", [events]],
};

const title = document.title;
let shown = null; // the screen
let day = new Date().toDateString(); // of what is shown: times of that day have no date

function show() {
  const address = here();
  const [label, all] = screens[address.screen] || ["No such page", []];
  endReadings();
  const hasKey = address.screen === "leases" && address.names.length === 1 && address.query.key !== undefined;
  const of = hasKey ? partition : all[address.names.length];
  document.title = [named(address.names), label, title].filter(text => text !== "").join(" · ");
  shown = of ? of(address) : nothing(address);
  $("main").replaceChildren(heading(address, label), shown.element);
  for (const item of document.querySelectorAll("nav a")) {
    const is = item.pathname === root + address.screen;
    if (!is) {
      item.removeAttribute("aria-current");
      continue;
    }
    item.setAttribute("aria-current", "page");
    item.parentElement.scrollLeft = item.offsetLeft - item.parentElement.clientWidth / 2; // on a phone
  }
  draw(new Set(["all"]));
}

// showAnew shows the screen again. If it had the focus, it keeps it.
function showAnew() {
  const focused = $("main").contains(document.activeElement);
  show();
  if (focused) $("main").focus({ preventScroll: true });
}

// heading shows where the screen is: the list, and the things below it.
function heading(address, label) {
  if (address.screen === "") return make("h1", "unseen", label);
  const element = make("header", "place");
  const title = make("h1", "");
  if (address.names.length === 0) title.append(label);
  address.names.forEach((part, i) => {
    if (i === 0) element.append(link(addressOf(address.screen), label), make("span", "sub", "/"));
    const text = make("bdi", "name", plain(part));
    if (i === address.names.length - 1) title.append(text);
    else element.append(link(addressOf(address.screen, address.names.slice(0, i + 1)), text), make("span", "sub", "/"));
  });
  element.append(title);
  return element;
}

function nothing(address) {
  const text = "There is no such page: " + plain([address.screen, ...address.names].join("/")) + ". ";
  const element = make("p", "card block", text, link(addressOf(""), "See the overview"), ".");
  return { element, parts: [], draw() {} };
}

function draw(changed) {
  countOn();
  const today = new Date().toDateString();
  if (today !== day) {
    day = today;
    showAnew();
    return;
  }
  if (changed.has("state") || changed.has("all")) drawState();
  const all = ["all", "size", "filter", "chosen", ...shown.parts];
  if (all.some(part => changed.has(part))) shown.draw(changed);
}

// drawState shows the age of the data.
function drawState() {
  const { link, status, seenAt } = state;
  const stale = isStale();
  const since = seenAt > 0 ? clock(seenAt) : "";
  const said = seenAt > 0 || link !== "connecting" || status?.failure;
  const kind = stale && said ? "stale" : seenAt > 0 ? "live" : "connecting";
  const quiet = kind === "stale" && link === "connecting"; // it was away for a moment, or comes back
  $("state").dataset.kind = quiet ? "connecting" : kind;
  const connecting = quiet || kind === "connecting";
  setText($("state-text"), connecting ? "Connecting" : kind === "live" ? "Live" :
    since ? "Stale since " + since : "No data");
  const why = {
    denied: "You may not look any more. " + signIn,
    lost: "The dashboard does not answer. This page tries again automatically.",
  }[link] || "The database does not answer as it should. The dashboard tries again each second.";
  const alarmed = kind === "stale" && !quiet;
  const from = since ? " What you see is from " + since + "." : " There is no data yet.";
  if (alarmed) setText($("banner-text"), why + from);
  $("banner").hidden = !alarmed;
  const failure = link === "open" && status?.failure || "";
  $("banner-more").hidden = failure === "";
  setText($("banner-failure"), plain(failure).replaceAll("\\n", "\n"));
  $("main").classList.toggle("stale", alarmed && seenAt > 0);
  if (!status?.server) return;
  const unaccepted = status.server.timeline !== status.server.accepted_timeline;
  const versions = "Schema version " + status.schema_version + ", server generation " + status.server.generation + ".";
  const waits = " The server is not accepted: no partition moves until a client has watched it for the longest TTL.";
  setText($("server"), versions + (unaccepted ? waits : ""));
}

addEventListener("popstate", show);
addEventListener("gone", () => {
  show();
  scrollTo(0, 0);
  $("main").focus({ preventScroll: true });
});
new ResizeObserver(() => later("size")).observe($("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => later("size"));
let sharpFor = window.devicePixelRatio; // changes if the window moves to another screen, or is zoomed
addEventListener("resize", () => {
  if (sharpFor === window.devicePixelRatio) return;
  sharpFor = window.devicePixelRatio;
  later("size");
});
if (operating) await import("./operate.js");
for (const item of document.querySelectorAll("nav a")) item.href = root + item.dataset.screen;
show();
onChange(draw);
poll();
