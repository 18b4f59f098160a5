// A streamed answer over a bad connection, with `fetch` alone: after each break it goes on behind the last event that came.
// EventSource would reconnect by itself, but can neither send a body nor a key.

const MAX_ATTEMPTS = 5; // connections in a row that may bring nothing

/** An error that trying again does not mend. */
export class Refused extends Error {}

/**
 * The frames of a streamed chat completion, once each, whatever happens to the connection. `onReconnect` is called after each break.
 * Leaving the loop, or aborting by `signal`, ends the request.
 */
export async function* chat(address, key, body, { signal, onReconnect = () => {} } = {}) {
  const headers = { "content-type": "application/json", "x-limelight-resumable": "1", "x-limelight-grace": "60" };
  if (key) headers.authorization = `Bearer ${key}`;
  let unread = false; // something of the stream is still to come
  try {
    for (let attempts = 1; attempts <= MAX_ATTEMPTS; attempts += 1) {
      try {
        const request = { method: "POST", headers, body: JSON.stringify({ ...body, stream: true }), signal };
        const response = await fetch(`${address}/v1/chat/completions`, request);
        if (response.status === 204) return; // all of it has been read
        if (!response.ok) throw new Refused((await response.json()).error.message);
        for await (const { id, data } of events(response.body)) {
          attempts = 0;
          headers["last-event-id"] = id; // with this header, the request is not run again
          unread = data !== "[DONE]";
          if (!unread) return;
          const frame = JSON.parse(data);
          if (frame.error) throw new Refused(frame.error.message);
          yield frame;
        }
      } catch (error) {
        if (error instanceof Refused || signal?.aborted) throw error;
      }
      onReconnect(attempts);
      await new Promise((resolve) => setTimeout(resolve, 200 * (attempts + 1)));
    }
    throw new Error("the connection broke too often");
  } finally {
    if (unread) giveUp(address, headers);
  }
}

/** A resumable stream waits for its reader to come back; this one will not. */
function giveUp(address, { authorization, "last-event-id": id }) {
  const headers = authorization ? { authorization } : {};
  fetch(`${address}/v1/streams/${id.split(":")[0]}`, { method: "DELETE", headers, keepalive: true }).catch(() => {});
}

/** The first model that the server has. */
export async function firstModel(address, key) {
  const response = await fetch(`${address}/v1/models`, { headers: key ? { authorization: `Bearer ${key}` } : {} });
  if (!response.ok) throw new Refused((await response.json()).error.message);
  return (await response.json()).data[0].id;
}

/** Id and data of each server-sent event. A half-read event is lost with its connection, and comes again with the next. */
async function* events(stream) {
  let rest = "";
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n"); // those that begin with a colon are comments
        const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
        if (field("data") !== undefined) yield { id: field("id"), data: field("data") };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
