/** What both kinds of charts stand on: SVG elements, round steps, values at the left, a figure around it. */

import { element, fill, table } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

/** Round values from 0 to the first that is not under `most`; steps of 1, 2 or 5 times a power of ten. */
export function ticks(most, { count = 4, integer = false } = {}) {
  const raw = Math.max(most, integer ? 1 : 1e-9) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * (1 - 1e-9));
  if (integer) step = Math.max(1, step);
  const values = [0];
  while (values.at(-1) < most - 1e-9 * step) values.push(values.length * step);
  return values.length > 1 ? values : [0, step];
}

/**
 * A figure's parts: the drawing, what it shows in words under it, and a table that can be opened.
 *
 * Redrawn with `draw(width, height)` whenever its width changes; the drawing itself is one image to a screen
 * reader, described by the words.
 */
export class Figure {
  constructor(figure, label) {
    const id = `${figure.id}-words`;
    this.head = element("p", { class: "legend" });
    this.image = svg("svg", { role: "img", "aria-label": label, "aria-describedby": id });
    this.words = element("figcaption", { id, class: "words" });
    this.lines = element("table", { class: "numbers" });
    const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, table` };
    this.details = element("details", {},
      element("summary", {}, "As a table"), element("div", scroll, this.lines));
    figure.append(this.head, this.image, this.words, this.details);
    this.draw = () => {};
    this.table = () => [[], []];
    this.details.addEventListener("toggle", () => this.tell());
    new ResizeObserver(() => this.paint()).observe(this.image);
  }

  /** Draw anew, once there is room. */
  paint() {
    const { clientWidth: width, clientHeight: height } = this.image;
    if (width && height) this.draw(width, height);
  }

  /** Fill the table, where somebody looks at it. */
  tell() {
    if (!this.details.open) return;
    const [heads, lines] = this.table();
    table(this.lines, heads, lines);
  }

  say(text) { fill(this.words, text); }
}

/** Horizontal lines with their values at the left. */
export function grid(values, { left, right, y, name }) {
  const group = svg("g", { class: "grid" });
  for (const value of values) {
    group.append(
      svg("line", { x1: left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 8, y: y(value), dy: "0.32em", "text-anchor": "end" }, name(value)),
    );
  }
  return group;
}
