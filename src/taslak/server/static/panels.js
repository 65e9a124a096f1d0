/** Models, running requests, monitor events and totals: one function a panel, each given a whole answer. */

import { $, choices, element, figures, fill, table } from "./dom.js";
import {
  bytes, clock, fixed, known, lasting, money, NONE, percent, plural, sentence, speed, whole,
} from "./words.js";

const FEW = 8;  // events that are shown unasked

const share = (part, of) => (of > 0 ? part / of : null);

const MODELS = [
  "Model", "Speculation", "Method", "γ", "Draft", "Verification", "Type", "Prefix cache",
  "Cost of 1M tokens",
];

const drafts = ({ method }) => Boolean(method) && method !== "plain";

export function showModels({ models, price_per_hour: price }) {
  const cache = ({ prefix_cache: held }) => held
    ? `${bytes(held.bytes)} of ${bytes(held.limit)}, ${plural(held.hit_tokens, "token")} reused` : NONE;
  table($("models"), MODELS, models.map((model) => [
    model.name,
    model.speculating ? "● on" : "○ off",
    model.method ?? NONE,
    known(model.gamma) ? whole(model.gamma) : drafts(model) ? "adaptive" : NONE,
    model.draft ?? NONE,
    model.verify ?? NONE,
    model.dtype ?? NONE,
    cache(model),
    money(model.cost_per_million_tokens),
  ]));
  fill($("price"), known(price) ? `At ${money(price)} an hour for the machine.` : "");
  choices($("model"), models.map((model) => model.name));
}

const RUNNING = [
  "Request", "Model", "Task", "Prompt tokens", "Tokens", "For", "Tokens/s", "Acceptance rate", "α",
];

export function showRunning({ running }) {
  table($("running"), RUNNING, running.map((one) => [
    String(one.id),
    one.model,
    one.task || NONE,
    whole(one.prompt_tokens),
    whole(one.tokens),
    lasting(Math.round(one.seconds)),
    speed(share(one.tokens, one.seconds)),
    percent(one.acceptance_rate),
    fixed(one.alpha),
  ]));
  $("running").hidden = !running.length;
  $("running-none").hidden = running.length > 0;
}

const KINDS = { low: "Below break-even", change: "Sudden change" };

function event(one, now) {
  const open = one.ended === null;
  const task = one.task === null ? "all tasks" : one.task === "" ? "no task named" : `task ${one.task}`;
  const item = element("li", { class: open ? "open" : "over" },
    element("p", { class: "what" },
      element("strong", {}, KINDS[one.kind] ?? one.kind),
      element("span", { class: "badge" }, open ? "● open" : "○ over")),
    element("p", { class: "words" }, `${one.model}, ${task}`),
    element("p", {}, sentence(one.message)));
  if (one.causes?.length) {
    item.append(element("p", { class: "words" }, "Likely causes"),
      element("ul", {}, ...one.causes.map((cause) => element("li", {}, cause))));
  }
  const ended = open ? "" : `, over after ${lasting(Math.round(one.ended - one.time))}`;
  item.append(element("p", { class: "words" }, `Since ${clock(one.time, now)}${ended}`));
  return item;
}

/** The Monitor's events: open ones first, then the newest; and a word to screen readers about new ones. */
export class Events {
  constructor() {
    this.all = false;
    this.last = "";
    this.heard = null;
    $("events-more").addEventListener("click", () => {
      this.all = !this.all;
      this.draw();
    });
  }

  show({ events, time }) {
    const told = JSON.stringify(events);
    if (told === this.last) return;  // what is being read is left alone
    this.last = told;
    this.now = time;
    this.events = events.toSorted((a, b) => (a.ended !== null) - (b.ended !== null) || b.time - a.time);
    const fresh = this.heard && this.events.find((one) => !this.heard.has(one.id));
    if (fresh) fill($("news"), `Monitor: ${sentence(fresh.message)}`);
    this.heard = new Set(events.map((one) => one.id));
    this.draw();
  }

  draw() {
    const open = this.events.filter((one) => one.ended === null).length;
    fill($("events-words"), this.events.length
      ? `${whole(open)} open, ${whole(this.events.length - open)} over.`
      : "Nothing to report: no rate below its break-even, no sudden change.");
    const shown = this.all ? this.events : this.events.slice(0, Math.max(FEW, open));
    $("events").replaceChildren(...shown.map((one) => event(one, this.now)));
    $("events-more").hidden = this.events.length <= Math.max(FEW, open);
    fill($("events-more"), this.all ? "Show fewer" : `Show all ${whole(this.events.length)}`);
  }
}

export function showTotals({ totals }) {
  figures($("totals"), [
    ["requests", whole(totals.requests)],
    ["failed", whole(totals.failed)],
    ["tokens written", whole(totals.tokens)],
    ["prompt tokens", whole(totals.prompt_tokens)],
    ["of them cached", whole(totals.cached_prompt_tokens)],
    ["cached part", percent(share(totals.cached_prompt_tokens, totals.prompt_tokens))],
    ["passes", whole(totals.passes)],
    ["drafted", whole(totals.drafted)],
    ["accepted", whole(totals.accepted)],
    ["acceptance rate", percent(share(totals.accepted, totals.drafted))],
    ["α", fixed(share(totals.accepted, totals.passes))],
    ["τ", fixed(share(totals.tokens, totals.passes))],
  ]);
}
