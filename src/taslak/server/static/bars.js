/** Acceptance by depth, as columns: of the tokens drafted at a depth, the part that was accepted. */

import { Figure, grid, svg } from "./axes.js";
import { percent, plural, whole } from "./words.js";

const MARGIN = { left: 46, right: 10, top: 20, bottom: 40 };
const MARKS = [0, 0.25, 0.5, 0.75, 1];
const WIDEST = 64, ROOM_FOR_TEXT = 34;  // pixels

const rate = ({ drafted, accepted }) => (drafted > 0 ? accepted / drafted : null);

export class Bars {
  constructor(figure, label) {
    this.figure = new Figure(figure, label);
    this.figure.draw = (width, height) => this.draw(width, height);
    this.figure.table = () => [
      ["Depth", "Drafted", "Accepted", "Part"],
      this.depths.map((one) => [
        whole(one.depth), whole(one.drafted), whole(one.accepted), percent(rate(one)),
      ]),
    ];
    this.depths = [];
  }

  /** depths: [{ depth, drafted, accepted }], from 1 on. */
  show(depths) {
    this.depths = depths.filter((one) => one.drafted > 0);
    this.figure.say(this.words());
    this.figure.paint();
    this.figure.tell();
  }

  words() {
    if (!this.depths.length) return "Nothing drafted yet.";
    const told = (one) => `${percent(rate(one))} of ${plural(one.drafted, "token")} at depth ${one.depth}`;
    const first = this.depths[0], last = this.depths.at(-1);
    return first === last ? `Accepted: ${told(first)}.` : `Accepted: ${told(first)}, ${told(last)}.`;
  }

  draw(width, height) {
    const left = MARGIN.left, right = width - MARGIN.right, bottom = height - MARGIN.bottom;
    const y = (value) => bottom - value * (bottom - MARGIN.top);
    const room = (right - left) / Math.max(1, this.depths.length);
    const bar = Math.min(WIDEST, room * 0.64);
    const every = Math.ceil(ROOM_FOR_TEXT / room);  // narrow columns: only some are named
    const image = this.figure.image;
    image.replaceChildren(grid(MARKS, { left, right, y, name: percent }));
    this.depths.forEach((one, i) => {
      const x = left + room * (i + 0.5), part = rate(one);
      const column = (value, look) => svg("rect", {
        class: look, x: x - bar / 2, width: bar, y: y(value), height: Math.max(0, bottom - y(value)), rx: 3,
      });
      image.append(column(1, "track"), column(part, "column"));
      if (i % every) return;
      image.append(
        svg("text", { class: "part", x, y: y(part) - 6, "text-anchor": "middle" }, percent(part)),
        svg("text", { x, y: bottom + 16, "text-anchor": "middle" }, String(one.depth)),
      );
    });
    const middle = { x: (left + right) / 2, "text-anchor": "middle" };
    if (this.depths.length) image.append(svg("text", { ...middle, y: bottom + 34 }, "depth in the draft"));
    else image.append(svg("text", { ...middle, class: "empty", y: height / 2 }, "Nothing drafted yet"));
  }
}
