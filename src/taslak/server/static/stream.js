/** Chat completions as they are written: server-sent events, one JSON object each. */

import { complaint, Refused, request } from "./api.js";

/** The data of a stream's events, in order, until its [DONE]. Raises Refused when it breaks off before. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Refused("The connection broke off before the answer was finished.");
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;  // a comment that keeps the connection, an empty line
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield data;
    }
  }
}

/** A delta's text in pieces: [text, whether it came from an accepted draft]. */
function pieces(chunk) {
  const text = chunk.choices?.[0]?.delta?.content ?? "";
  const told = chunk.speculation?.pieces;
  if (Array.isArray(told) && told.map(([piece]) => piece).join("") === text) return told;
  return text ? [[text, false]] : [];
}

/**
 * Ask, and call `write(pieces)` with every piece of the answer.
 *
 * Resolves to { finish, usage, speculation }, each null where the server did not say. Raises what `request`
 * raises, and Refused for an error inside the stream.
 */
export async function complete(question, { signal, write }) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...question, stream: true, stream_options: { include_usage: true } }),
  });
  const told = { finish: null, usage: null, speculation: null };
  for await (const data of events(response.body)) {
    let chunk;
    try {
      chunk = JSON.parse(data);
    } catch {
      throw new Refused("The server sent a part of the answer that could not be read.");
    }
    if (chunk.error) throw new Refused(complaint(chunk) ?? "The server ended the answer with an error.");
    write(pieces(chunk));
    told.usage = chunk.usage ?? told.usage;
    const finish = chunk.choices?.[0]?.finish_reason;
    if (finish) {
      told.finish = finish;
      told.speculation = chunk.speculation ?? null;
    }
  }
  return told;
}
