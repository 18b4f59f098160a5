// The live feed of the server's requests: connects, connects again, and says how it stands.

import { request } from "./api.js";
import { askForKey } from "./key-dialog.js";
import { events } from "./sse.js";

const FIRST_PAUSE_SECONDS = 0.5;
const LONGEST_PAUSE_SECONDS = 10;
const SILENCE_MILLISECONDS = 8000; // the server tells something every second
const NUM_RECENT = 300;

/**
 * Follows the feed for as long as the page is open.
 *
 * `handlers` has a function for each type of event (`history`, `snapshot`, `ended`), `list(list)` for the list of
 * requests that is fetched after each connection, and `state(name, values)`: "connecting", "connected", "loading",
 * "lost" with the `seconds` until the next try, or "refused" and "missing" with a `message`; these two end it.
 */
export async function follow(handlers) {
  let pause = FIRST_PAUSE_SECONDS;
  for (;;) {
    handlers.state("connecting", {});
    try {
      await connection(handlers, () => { pause = FIRST_PAUSE_SECONDS; });
    } catch (error) {
      if (error.status === 401) {
        await askForKey();
        continue;
      }
      if (error.status === 403 || error.status === 404) {
        handlers.state(error.status === 403 ? "refused" : "missing", { message: error.message });
        return;
      }
      handlers.state(error.status === 503 ? "loading" : "lost", { seconds: pause });
    }
    await new Promise((resume) => setTimeout(resume, pause * 1000));
    pause = Math.min(2 * pause, LONGEST_PAUSE_SECONDS);
  }
}

/** One connection, until it ends; always by an exception. */
async function connection(handlers, heard) {
  const ending = new AbortController();
  let watch = null;
  const listen = () => {
    clearTimeout(watch);
    watch = setTimeout(() => ending.abort(), SILENCE_MILLISECONDS);
  };
  try {
    listen();
    const feed = await request("v1/requests/events", { signal: ending.signal });
    handlers.state("connected", {});
    request(`v1/requests?recent=${NUM_RECENT}`, { signal: ending.signal })
      .then((answer) => answer.json())
      .then(handlers.list, () => ending.abort());
    for await (const { type, data } of events(feed.body)) {
      listen();
      heard();
      handlers[type]?.(JSON.parse(data));
    }
    throw new Error("the feed ended");
  } finally {
    clearTimeout(watch);
    ending.abort();
  }
}
