/** Requests to the server, with the API key where it asks for one; what goes wrong becomes a sentence. */

import { sentence } from "./words.js";

const KEY = "taslak-api-key";

/** What the server said is wrong, for a reader. */
export class Refused extends Error {}

/** The server wants an API key and the reader gave none. */
export class NoKey extends Error {
  constructor() { super("The server asks for an API key."); }
}

let ask = async () => null;
let asking = null;

/** ask(refused) shows the reader the question and resolves to a key, or to null; `refused`: one was wrong. */
export function askWith(question) { ask = question; }

// in this tab only: a key in localStorage would outlive the visit
export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const forgetKey = () => sessionStorage.removeItem(KEY);

async function newKey(refused) {
  asking ??= ask(refused).finally(() => { asking = null; });  // one question, however many requests wait
  const key = await asking;
  if (key === null) throw new NoKey();
  sessionStorage.setItem(KEY, key);
}

/** What an error of the API's shape says, as a sentence; null where it has none. */
export function complaint(body) {
  const message = body?.error?.message ?? (typeof body?.error === "string" ? body.error : null);
  return typeof message === "string" && message.trim() ? sentence(message) : null;
}

/**
 * The response to a request that went well. `limit`: seconds until one that gets no answer is given up.
 *
 * Raises Refused (the server's own words), NoKey, and fetch's TypeError where no server answers.
 */
export async function request(path, { limit = null, headers = {}, ...options } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const response = await fetch(path, {
      cache: "no-store",
      ...options,
      headers: key === null ? headers : { ...headers, Authorization: `Bearer ${key}` },
      ...(limit === null ? {} : { signal: AbortSignal.timeout(1000 * limit) }),
    });
    if (response.ok) return response;
    if (response.status === 401) {
      if (sessionStorage.getItem(KEY) === key) await newKey(key !== null);
      continue;
    }
    const body = await response.json().catch(() => null);
    const status = `The server answered ${response.status} ${response.statusText}`;
    throw new Refused(complaint(body) ?? sentence(status));
  }
}
