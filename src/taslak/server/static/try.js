/** The prompt box: asks the server, shows the answer as it is written, and then what it took. */

import { NoKey, Refused } from "./api.js";
import { $, element, fill } from "./dom.js";
import { complete } from "./stream.js";
import { fixed, known, lasting, NONE, percent, plural, sentence, speed, whole } from "./words.js";

/** The answer's text; tokens of accepted drafts are marked. */
class Answer {
  constructor(node) {
    this.node = node;
    this.marked = null;
    node.replaceChildren();
  }

  /** Append pieces; neighbours of one kind share an element. */
  write(pieces) {
    const { node } = this;
    const below = node.scrollHeight - node.scrollTop - node.clientHeight;
    for (const [text, accepted] of pieces) {
      if (!text) continue;
      if (this.marked === accepted) node.lastChild.firstChild.appendData(text);
      else node.append(element("span", accepted ? { class: "accepted" } : {}, text));
      this.marked = accepted;
    }
    if (below < 40) node.scrollTop = node.scrollHeight;  // a reader who scrolled up stays there
  }
}

const question = (form) => {
  const number = (name) => (form[name].value === "" ? undefined : form[name].valueAsNumber);
  return {
    model: form.model.value,
    messages: [{ role: "user", content: form.prompt.value }],
    temperature: number("temperature"),
    max_tokens: number("max-tokens"),
    seed: number("seed"),  // undefined is left out: the server draws one
    speculation: { off: !form.speculation.checked, flags: true },
  };
};

const ENDS = { stop: "ended by itself", length: "ended at the most tokens asked for" };

/** What an answer took, in figures and words. seconds: { first, whole }, as measured here. */
function showOutcome({ finish, usage, speculation }, seconds, stopped) {
  const tokens = usage?.completion_tokens;
  const told = speculation ?? {};
  fill($("out-passes"), whole(told.passes));
  fill($("out-tau"), fixed(told.tau));
  fill($("out-rate"), percent(told.acceptance_rate));
  fill($("out-speed"), speed(known(tokens) && seconds.whole > 0 ? tokens / seconds.whole : null));
  fill($("out-first"), lasting(seconds.first));
  fill($("out-speedup"), known(told.speedup) ? `${fixed(told.speedup)}×` : NONE);

  const words = [stopped ? "stopped by you" : ENDS[finish] ?? (finish ? `ended by ${finish}` : "ended")];
  if (known(tokens)) words.push(`${plural(tokens, "token")} in ${lasting(seconds.whole)}, the wait included`);
  if (known(told.drafted)) {
    words.push(`${whole(told.accepted)} of ${whole(told.drafted)} drafted tokens accepted`);
  }
  if (told.method) {
    words.push(`method ${told.method}${known(told.gamma) ? ` with γ ${whole(told.gamma)}` : ""}`);
    if (told.verify) words.push(`verification ${told.verify}`);
  }
  const spent = Object.values(told.seconds ?? {}).reduce((sum, value) => sum + value, 0);
  if (spent > 0) {
    const part = (name) => percent(told.seconds[name] / spent);
    words.push(`time: draft ${part("draft")}, pass ${part("pass")}, other ${part("other")}`);
  }
  if (known(told.seed)) words.push(`seed ${told.seed}`);
  const text = sentence(words.join(" · "));
  fill($("out-words"), text[0].toUpperCase() + text.slice(1));
  $("keep-seed").hidden = !known(told.seed);
  $("keep-seed").value = told.seed ?? "";
}

function clearOutcome(words) {
  for (const figure of $("outcome").querySelectorAll("dd")) fill(figure, NONE);
  fill($("out-words"), words);
  $("keep-seed").hidden = true;
}

function why(error) {
  if (error instanceof Refused || error instanceof NoKey) return error.message;
  if (error instanceof TypeError) return "The server does not answer, or the connection to it broke off.";
  throw error;
}

/** Make the form work. */
export function prepareTry() {
  const form = $("try");
  let running = null;

  const busy = (yes) => {
    const [from, to] = yes ? [$("send"), $("stop")] : [$("stop"), $("send")];
    const focused = document.activeElement === from;
    from.hidden = true;
    to.hidden = false;
    if (focused) to.focus();
    $("answer").setAttribute("aria-busy", String(yes));  // read out when it is whole, not by the token
  };

  form.addEventListener("submit", async (submit) => {
    submit.preventDefault();
    if (running) return;
    running = new AbortController();
    busy(true);
    fill($("try-error"), "");
    clearOutcome("It is being written.");
    const answer = new Answer($("answer"));
    const start = performance.now();
    const seconds = { first: null, whole: null };
    const since = () => (performance.now() - start) / 1000;
    const write = (pieces) => {
      if (pieces.length) seconds.first ??= since();
      answer.write(pieces);
    };
    try {
      const told = await complete(question(form), { signal: running.signal, write });
      seconds.whole = since();
      showOutcome(told, seconds, false);
    } catch (error) {
      if (running.signal.aborted) showOutcome({}, seconds, true);
      else {
        clearOutcome("It was not finished.");
        fill($("try-error"), why(error));
      }
    } finally {
      running = null;
      busy(false);
    }
  });

  form.addEventListener("keydown", (key) => {
    if (key.key !== "Enter" || !(key.ctrlKey || key.metaKey)) return;
    key.preventDefault();
    form.requestSubmit();
  });
  $("stop").addEventListener("click", () => running?.abort());
  $("keep-seed").addEventListener("click", () => {
    $("seed").value = $("keep-seed").value;
    $("seed").focus();
  });
}
