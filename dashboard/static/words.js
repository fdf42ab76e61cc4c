// Numbers and times as people read them.

export const count = n => n.toLocaleString("en");
export const many = (n, one, more = one + "s") => count(n) + " " + (n === 1 ? one : more);
export const most1000 = n => n > 1000 ? "1,000+" : count(n);

export function span(ms) {
  const s = ms / 1000;
  if (s < 10) return Math.max(0, s).toFixed(1) + " s";
  if (s < 120) return Math.round(s) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " days";
}

// ofNs is span for a number of nanoseconds; empty for null and 0.
export const ofNs = ns => ns > 0 ? span(ns / 1e6) : "";

// clock is a time of today, or with its day, and of another year with that.
export function clock(time) {
  const t = new Date(time);
  const hours = t.toLocaleTimeString("en-GB");
  const now = new Date();
  if (t.toDateString() === now.toDateString()) return hours;
  const day = { day: "numeric", month: "short" };
  if (t.getFullYear() !== now.getFullYear()) day.year = "numeric";
  return t.toLocaleDateString("en-GB", day) + ", " + hours;
}

// isTime reports whether a time is not the zero time of Go.
export const isTime = time => !!time && !time.startsWith("0001-01-01");

// ago is how long ago a time was, by this browser's clock.
export const ago = time => span(Math.max(0, Date.now() - new Date(time))) + " ago";

// outageText says from when to when no client lived.
export const outageText = ({ from, to }) =>
  "from " + clock(from) + " to " + clock(to) + ", for " + span(new Date(to) - new Date(from));

export function rangesText(ranges, most = 12) {
  const words = ranges.slice(0, most)
    .map(([first, last]) => first === last ? count(first) : count(first) + "–" + count(last));
  return words.join(", ") + (ranges.length > most ? ", …" : "");
}

export const sizeOf = ranges => ranges.reduce((n, [first, last]) => n + last - first + 1, 0);

// firstLine is an error without, for example, the stack of a panic.
export const firstLine = error => (error || "").split("\n")[0];
