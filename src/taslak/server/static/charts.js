/** The page's charts: what they show and how it is said in words. */

import { Bars } from "./bars.js";
import { $, choices } from "./dom.js";
import { Lines } from "./lines.js";
import { fixed, known, percent, speed, whole } from "./words.js";

const LAST = { 60: "the last minute", 300: "the last 5 minutes", 600: "the last 10 minutes" };

/** "31 now; between 20 and 44 in the last minute, 33 on average." */
function summary(points, key, span, text) {
  const values = points.map((point) => point[key]).filter(known);
  if (!values.length) return `Nothing measured in ${LAST[span]}.`;
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const now = points.at(-1)[key];
  const first = known(now) ? `${text(now)} now; ` : "Nothing at the moment; ";
  return `${first}between ${text(Math.min(...values))} and ${text(Math.max(...values))} in ${LAST[span]}, `
    + `${text(mean)} on average.`;
}

/** Whether drafting pays, by the newest point that knows. */
function verdict(points) {
  const point = points.findLast((one) => known(one.acceptance_rate) && known(one.break_even));
  if (!point) return "";
  const pays = point.acceptance_rate >= point.break_even;
  return ` Break-even is ${percent(point.break_even)}: drafting ${pays ? "pays" : "does not pay"}.`;
}

export class Charts {
  constructor() {
    this.speed = new Lines($("chart-speed"), {
      label: "Tokens per second over time",
      series: [{ key: "tokens_per_second", name: "tokens/s", look: "main" }],
      value: speed, mark: whole, integer: true,
      words: (points, span) => summary(points, "tokens_per_second", span, speed),
    });
    this.rate = new Lines($("chart-rate"), {
      label: "Acceptance rate over time",
      series: [
        { key: "acceptance_rate", name: "acceptance rate", look: "main" },
        { key: "break_even", name: "break-even", look: "limit" },
      ],
      value: percent, mark: percent, top: 1,
      words: (points, span) => summary(points, "acceptance_rate", span, percent) + verdict(points),
    });
    this.alpha = new Lines($("chart-alpha"), {
      label: "α, accepted tokens a pass, over time",
      series: [{ key: "alpha", name: "α", look: "main" }],
      value: fixed, mark: (value) => String(Number(value.toPrecision(6))),
      words: (points, span) => summary(points, "alpha", span, fixed),
    });
    this.load = new Lines($("chart-load"), {
      label: "Running and waiting requests over time",
      series: [
        { key: "running", name: "running", look: "main" },
        { key: "waiting", name: "waiting", look: "second" },
      ],
      value: whole, mark: whole, integer: true,
      words: (points, span) => {
        const most = (key) => Math.max(0, ...points.map((point) => point[key]).filter(known));
        const now = points.at(-1);
        if (!now) return `Nothing measured in ${LAST[span]}.`;
        return `${whole(now.running)} running and ${whole(now.waiting)} waiting now; `
          + `at most ${whole(most("running"))} and ${whole(most("waiting"))} in ${LAST[span]}.`;
      },
    });
    this.depth = new Bars($("chart-depth"), "Acceptance by depth");
    this.data = null;
    const again = () => { if (this.data) this.show(this.data); };
    $("span").addEventListener("change", again);
    $("depth-model").addEventListener("change", again);
  }

  show(data) {
    this.data = data;
    const span = Number($("span").querySelector(":checked").value);
    for (const chart of [this.speed, this.rate, this.alpha, this.load]) {
      chart.show(data.history, data.time, span);
    }
    const names = Object.keys(data.depths);
    choices($("depth-model"), names);
    $("depth-choice").hidden = names.length < 2;
    this.depth.show(data.depths[$("depth-model").value] ?? []);
  }
}
