// Each owner has a color, a pattern that changes after ten owners, and letters: no two owners have the
// same three.

import { make } from "./dom.js";

const palette = [
  "#4c8fd0", "#e0a33a", "#3aa887", "#c972a4", "#7b6fc4", "#d9663d", "#8fbf4d", "#57b9c9", "#a98258", "#d6c84a",
];
const inks = palette.map(hex => {
  const [r, g, b] = [1, 3, 5].map(i => (parseInt(hex.slice(i, i + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.19 ? "#10161c" : "#ffffff";
});

const colorOf = slot => palette[slot % palette.length];
const inkOf = slot => inks[slot % palette.length];

function lettersOf(slot) {
  let letters = "";
  for (let n = slot + 1; n > 0; n = Math.floor((n - 1) / 26)) {
    letters = String.fromCharCode(65 + (n - 1) % 26) + letters;
  }
  return letters;
}

// The kinds of patterns: 0 plain, 1 falling lines, 2 dots, 3 rising lines, 4 a grid.
export function paint(context, slot, scale) {
  const kind = Math.floor(slot / palette.length) % 5;
  return kind === 0 ? colorOf(slot) : pattern(context, kind, colorOf(slot), inkOf(slot), scale);
}

const patterns = new Map(); // by kind, colors and scale

export function pattern(context, kind, ground, ink, scale) {
  const key = [kind, ground, ink, scale].join();
  if (!patterns.has(key)) patterns.set(key, tile(kind, ground, ink, scale));
  return context.createPattern(patterns.get(key), "repeat");
}

function tile(kind, ground, ink, scale) {
  const canvas = document.createElement("canvas");
  const side = Math.round(6 * scale);
  canvas.width = side;
  canvas.height = side;
  const c = canvas.getContext("2d");
  c.fillStyle = ground;
  c.fillRect(0, 0, side, side);
  c.strokeStyle = ink;
  c.fillStyle = ink;
  c.globalAlpha = 0.55;
  c.lineWidth = scale * 1.2;
  const line = (x, y, toX, toY) => {
    c.moveTo(x, y);
    c.lineTo(toX, toY);
  };
  c.beginPath();
  for (const shift of [-side, 0, side]) {
    if (kind === 1) line(shift, 0, shift + side, side);
    if (kind === 3) line(shift, side, shift + side, 0);
  }
  if (kind === 4) {
    line(0, side / 2, side, side / 2);
    line(side / 2, 0, side / 2, side);
  }
  if (kind === 2) c.arc(side / 2, side / 2, side / 4, 0, 7);
  if (kind === 2) c.fill();
  else c.stroke();
  return canvas;
}

// tag is the color, the pattern and the letters of an owner.
export function tag(slot) {
  const canvas = make("canvas", "tag");
  const ratio = Math.max(2, window.devicePixelRatio || 1);
  canvas.setAttribute("aria-hidden", "true");
  canvas.width = 26 * ratio;
  canvas.height = 21 * ratio;
  const c = canvas.getContext("2d");
  c.fillStyle = paint(c, slot, ratio);
  c.fillRect(0, 0, canvas.width, canvas.height);
  letter(c, slot, canvas.width / 2, canvas.height / 2, 11.5 * ratio);
  return canvas;
}

export function letter(c, slot, x, y, size) {
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

// styles returns the values of colors of the style sheet, such as "--bad".
export function styles(...names) {
  const style = getComputedStyle(document.documentElement);
  return names.map(n => style.getPropertyValue(n).trim());
}
