// The server's API: its models, and its answers as they are streamed (docs/serving.md).

/** A failure in the server's own words. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

let key = ""; // in memory only

/** Sends this API key from now on. */
export function useKey(given) {
  key = given;
}

/** The entries of /v1/models. */
export async function models() {
  const response = await request("v1/models", {});
  return (await response.json()).data;
}

/** What a trigger would have decided on a recorded text. */
export async function replay(body) {
  return (await post("v1/replay", body)).json();
}

/** What the prober says of a finished text. */
export async function score(body, signal) {
  try {
    return await (await post("v1/score", body, signal)).json();
  } catch (error) {
    if (error.status !== 404) throw error;
    throw new ServerError("This server checks no finished texts: it has no POST /v1/score.", 404);
  }
}

function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return request(path, { method: "POST", body: JSON.stringify(body), signal, headers });
}

/** The chunks of a streamed answer, parsed. */
export async function* stream(path, body, signal) {
  const response = await post(path, { ...body, stream: true }, signal);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message ?? String(chunk.error));
    yield chunk;
  }
  throw new ServerError("The server ended the stream before the answer was finished.");
}

async function request(path, options) {
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(`The server cannot be reached (${error.message}).`);
  }
  if (!response.ok) throw new ServerError(await words(response), response.status);
  return response;
}

/** What a response says went wrong. */
async function words(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    const said = body.error?.message ?? body.error ?? body.detail;
    if (said) return typeof said === "string" ? said : JSON.stringify(said);
  } catch {
    // not JSON: as it is
  }
  return text.trim().slice(0, 500) || `The server answered ${response.status} ${response.statusText}.`;
}

/** The data of each server-sent event of a body. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
    }
  }
}
