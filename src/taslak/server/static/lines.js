/** Figures over time, as lines: the newest at the right, holes where there was nothing to measure. */

import { Figure, grid, svg, ticks } from "./axes.js";
import { element } from "./dom.js";
import { known, lasting } from "./words.js";

const GAP = 5;       // seconds without a figure that are a hole
const ROWS = 20;     // of the table; ten minutes by the second would be read by nobody
const MARGIN = { left: 46, right: 10, top: 12, bottom: 26 };
const STEPS = { 60: 15, 300: 60, 600: 120 };  // seconds between the marks of a span

const agoMark = (seconds) =>
  seconds === 0 ? "now" : seconds % 60 ? `−${seconds} s` : `−${seconds / 60} min`;

export class Lines {
  /**
   * series:  [{ key, name, look }]: the field of a point, its name, and "main", "second" or "limit"
   * value:   a figure as a text with its unit; `mark`: as a text beside the axis
   * top:     where the axis ends; null = at what is shown
   * words:   (points shown, span) => the figures in a sentence or two
   */
  constructor(figure, { label, series, value, mark, words, top = null, integer = false }) {
    Object.assign(this, { series, value, mark, wording: words, top, integer });
    this.figure = new Figure(figure, label);
    this.figure.draw = (width, height) => this.draw(width, height);
    this.figure.table = () => this.table();
    this.points = [];
    this.now = 0;
    this.span = 600;
    this.pointer = null;
    this.legend();
    const { image } = this.figure;
    const follow = (event) => this.point(event.clientX - image.getBoundingClientRect().left);
    image.addEventListener("pointermove", follow);
    image.addEventListener("pointerdown", follow);
    image.addEventListener("pointerleave", () => this.point(null));
  }

  /** Show the points of the last `span` seconds before `now`, oldest first. */
  show(points, now, span) {
    this.points = points.filter((point) => point.time >= now - span);
    Object.assign(this, { now, span });
    this.figure.say(this.wording(this.points, span));
    this.figure.paint();
    this.figure.tell();
  }

  legend() {
    const { head } = this.figure;
    head.replaceChildren(...this.series.map(({ name, look }) => {
      const sample = svg("svg", { width: 22, height: 8, "aria-hidden": "true" });
      sample.append(svg("line", { class: look, x1: 1, x2: 21, y1: 4, y2: 4 }));
      return element("span", {}, sample, name);
    }));
  }

  draw(width, height) {
    const left = MARGIN.left, right = width - MARGIN.right;
    const top = MARGIN.top, bottom = height - MARGIN.bottom;
    const most = Math.max(0, ...this.points.flatMap((point) =>
      this.series.map(({ key }) => point[key]).filter(known)));
    const values = ticks(this.top ?? (most || 1), { integer: this.integer });
    const end = values.at(-1);
    const x = (time) => right - (this.now - time) / this.span * (right - left);
    const y = (value) => bottom - value / end * (bottom - top);

    const image = this.figure.image;
    image.replaceChildren(grid(values, { left, right, y, name: this.mark }), this.times(left, right, bottom));
    let shown = 0;
    // the main line last, over the others
    for (const { key, look } of this.series.toReversed()) {
      const parts = this.runs(key);
      shown += parts.length;
      const trace = (part) => part.map((point, i) =>
        `${i ? "L" : "M"}${x(point.time).toFixed(1)} ${y(point[key]).toFixed(1)}`).join("");
      const line = parts.map((part) => trace(part) + (part.length === 1 ? "h0" : "")).join("");
      if (look === "main") {
        const area = parts.map((part) =>
          `${trace(part)}V${bottom}H${x(part[0].time).toFixed(1)}Z`).join("");
        image.append(svg("path", { class: "area", d: area }));
      }
      image.append(svg("path", { class: look, d: line }));
    }
    if (!shown) {
      image.append(svg("text", {
        class: "empty", x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle",
      }, "Nothing measured yet"));
    }
    this.markPointer(x, y, top, bottom);
  }

  times(left, right, bottom) {
    const group = svg("g", { class: "times" });
    let step = STEPS[this.span] ?? this.span / 5;
    if (right - left < 420 && this.span / step > 4) step = this.span / 2;
    for (let ago = 0; ago <= this.span; ago += step) {
      const anchor = ago === 0 ? "end" : "middle";
      const x = right - ago / this.span * (right - left);
      group.append(svg("text", { x, y: bottom + 18, "text-anchor": anchor }, agoMark(ago)));
    }
    return group;
  }

  /** Unbroken stretches of points that have this figure. */
  runs(key) {
    const found = [];
    let last = null;
    for (const point of this.points) {
      if (!known(point[key])) { last = null; continue; }
      if (last !== null && point.time - last <= GAP) found.at(-1).push(point);
      else found.push([point]);
      last = point.time;
    }
    return found;
  }

  point(x) {
    this.pointer = x;
    this.figure.paint();
  }

  /** The figures under the pointer, in place of the legend's names. */
  markPointer(x, y, top, bottom) {
    const off = (point) => Math.abs(x(point.time) - this.pointer);
    const near = this.pointer === null || !this.points.length ? null
      : this.points.reduce((best, point) => (off(point) < off(best) ? point : best));
    this.series.forEach(({ key, name }, i) => {
      const told = near === null ? name : `${name} ${this.value(near[key])}`;
      this.figure.head.children[i].lastChild.data = told;
    });
    this.figure.head.dataset.at = near === null ? "" : `${lasting(Math.round(this.now - near.time))} ago`;
    if (near === null) return;
    const { image } = this.figure;
    image.append(svg("line", { class: "pointer", x1: x(near.time), x2: x(near.time), y1: top, y2: bottom }));
    for (const { key } of this.series) {
      if (known(near[key])) image.append(svg("circle", { cx: x(near.time), cy: y(near[key]), r: 3.5 }));
    }
  }

  table() {
    const heads = ["Before now", ...this.series.map(({ name }) => name)];
    const step = Math.max(1, Math.ceil(this.points.length / ROWS));
    const picked = this.points.toReversed().filter((_, i) => i % step === 0);
    return [heads, picked.map((point) => [
      lasting(Math.round(this.now - point.time)),
      ...this.series.map(({ key }) => this.value(point[key])),
    ])];
  }
}
