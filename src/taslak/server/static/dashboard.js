/** The page: asks the server each second what is going on, and shows it. */

import { request } from "./api.js";
import { Charts } from "./charts.js";
import { $, fill } from "./dom.js";
import { prepareKey, showKey } from "./key.js";
import { Events, showModels, showRunning, showTotals } from "./panels.js";
import { Poll } from "./poll.js";
import { prepareTry } from "./try.js";
import { fixed, lasting, percent, speed, whole } from "./words.js";

const PATIENCE = 10;  // seconds for an answer of a few kilobytes

const charts = new Charts();
const events = new Events();

function showNow({ history, running, waiting, version, uptime }) {
  const now = history.at(-1) ?? {};
  fill($("now-speed"), speed(now.tokens_per_second));
  fill($("now-rate"), percent(now.acceptance_rate));
  fill($("now-alpha"), fixed(now.alpha));
  fill($("now-running"), whole(running.length));
  fill($("now-waiting"), whole(waiting));
  fill($("about"), `${version}, up for ${lasting(Math.round(uptime))}`);
  document.title = `${speed(now.tokens_per_second)} tokens/s · taslak`;
}

/** state: "live" or "gone". A word of it goes to screen readers when it changes. */
function connection(state, trouble = "") {
  const changed = document.body.dataset.connection !== state;
  document.body.dataset.connection = state;
  fill($("state"), state === "live" ? "live" : "no connection");
  fill($("trouble-text"), trouble);
  $("trouble").hidden = state === "live";
  if (changed) fill($("news"), state === "live" ? "" : trouble);
}

let countdown = null;

/** Say until when nothing happens by itself; null = until the reader asks for it. */
function next(at) {
  clearInterval(countdown);
  const tell = () => {
    const left = Math.max(0, Math.ceil((at - performance.now()) / 1000));
    fill($("trouble-next"), left > 0 ? `Trying again in ${left} s.` : "Trying again.");
  };
  if (at === null) return fill($("trouble-next"), "");
  tell();
  countdown = setInterval(tell, 500);
}

const poll = new Poll({
  ask: async () => (await request("api/dashboard", { limit: PATIENCE })).json(),
  answered: (data) => {
    showNow(data);
    charts.show(data);
    showModels(data);
    showRunning(data);
    events.show(data);
    showTotals(data);
    connection("live");
    showKey();
    clearInterval(countdown);
  },
  failed: (trouble, again) => {
    document.title = "No connection · taslak";
    connection("gone", trouble);
    showKey();
    next(again);
    fill($("trouble-retry"), again === null ? "Enter the key" : "Try now");
  },
});

$("trouble-retry").addEventListener("click", () => poll.now());
prepareKey(() => poll.now());
prepareTry();
poll.now();
