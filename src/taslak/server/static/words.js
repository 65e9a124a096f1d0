/** Numbers in words: one form for each kind of figure, everywhere on the page. */

export const NONE = "–";

const digits = (value, most, least = most) =>
  new Intl.NumberFormat("en", { maximumFractionDigits: most, minimumFractionDigits: least }).format(value);

/** Is it a number? Rates are null where nothing was drafted. */
export const known = (value) => typeof value === "number" && Number.isFinite(value);

export const whole = (value) => (known(value) ? digits(value, 0) : NONE);
export const fixed = (value) => (known(value) ? digits(value, 2) : NONE);
export const percent = (value) => (known(value) ? `${digits(100 * value, 0)}%` : NONE);
export const money = (value) => (known(value) ? digits(value, value < 0.1 ? 4 : 2, 2) : NONE);

/** Tokens per second: a decimal where it says something. */
export const speed = (value) => (known(value) ? digits(value, value < 100 ? 1 : 0) : NONE);

export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; value >= 1000 && i < units.length - 1; i++) value /= 1000;
  return `${digits(value, value < 10 && i > 0 ? 1 : 0)} ${units[i]}`;
}

/** A time span: "0.21 s", "12 s", "3 min 5 s", "2 h 10 min", "4 d 3 h". */
export function lasting(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds < 10) return `${digits(seconds, 2, 0)} s`;
  seconds = Math.round(seconds);
  const parts = [
    [Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"], [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([count]) => count > 0);
  return parts.slice(first, first + 2).filter(([count]) => count > 0)
    .map(([count, unit]) => `${count} ${unit}`).join(" ");
}

/** When it was, in the reader's time zone; with its day where that isn't `now`'s. */
export function clock(time, now) {
  const at = new Date(1000 * time);
  const hour = at.toLocaleTimeString("en-GB");
  if (at.toDateString() === new Date(1000 * now).toDateString()) return hour;
  return `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${hour}`;
}

/** A message as a sentence: it ends like one. */
export function sentence(text) {
  const trimmed = String(text).trim();
  return /[.!?…]$/.test(trimmed) ? trimmed : `${trimmed}.`;
}

export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;
