/** Asks again and again while somebody looks, less and less often while nobody answers. */

import { NoKey, Refused } from "./api.js";

const EVERY = 1, LONGEST = 30;  // seconds

/** Seconds to wait after so many failures in a row. */
export const backOff = (failures) => Math.min(2 ** (failures - 1), LONGEST);

export class Poll {
  /**
   * ask:      resolves to what is asked for
   * answered: called with it
   * failed:   called with a sentence, and when it is asked again (of performance.now), null = not by itself
   */
  constructor({ ask, answered, failed }) {
    Object.assign(this, { ask, answered, failed });
    this.failures = 0;
    this.busy = false;
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.now());
    addEventListener("online", () => this.now());
  }

  /** Ask at once, whatever was planned. */
  async now() {
    clearTimeout(this.timer);
    if (this.busy || document.hidden) return;  // seen again, the page asks again
    this.busy = true;
    let wait = EVERY;
    try {
      const answer = await this.ask();
      this.failures = 0;
      this.answered(answer);
    } catch (error) {
      this.failures += 1;
      wait = error instanceof NoKey ? null : backOff(this.failures);
      this.failed(reason(error), wait === null ? null : performance.now() + 1000 * wait);
    } finally {
      this.busy = false;
    }
    if (wait !== null) this.timer = setTimeout(() => this.now(), 1000 * wait);
  }
}

/** Why, as a sentence. */
function reason(error) {
  if (error instanceof NoKey || error instanceof Refused) return error.message;
  if (error instanceof DOMException || isNetwork(error)) return "The server does not answer.";
  console.error(error);
  return "The server’s answer could not be read; it may be of another version than this page.";
}

// fetch raises a TypeError for "no connection", as a mistake in reading an answer may be one
const isNetwork = (error) => error instanceof TypeError && /fetch|network|load failed/i.test(error.message);
