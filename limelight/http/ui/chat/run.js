// One answer in progress: asks for it, reads its stream, and goes on with the stream where the connection broke.

import { request, ServerError } from "../api.js";
import { askForKey } from "../key-dialog.js";
import { events } from "../sse.js";
import { addChunk } from "./answer.js";

const FIRST_PAUSE_SECONDS = 0.5;
const LONGEST_PAUSE_SECONDS = 10;
const SILENCE_MILLISECONDS = 45_000; // the server's keep-alive comes every 15 seconds, unless it is told otherwise
const LOST = ["stream_gone", "stream_not_found", "request_expired"];

/** What a stream says of its own end, under whatever status it began. */
class StreamFailure extends ServerError {}

export class Run {
  /** What it waits for: null while text comes, else `{ name, ...values }`: "server", "queue", "prompt", "lost" or "key". */
  waiting = { name: "server" };
  #changed;
  #asked = null;
  #stopped = false;
  #connection = new AbortController();
  #retryNow = () => {};

  /** `answer` is filled, and `changed()` is called whenever there is something new of it or of `waiting`. */
  constructor(answer, changed) {
    this.answer = answer;
    this.#changed = changed;
  }

  /** Asks for the answer; resolves when it has ended, in whatever way. */
  ask(body) {
    return this.#until(async () => {
      this.#asked = performance.now();
      const response = await this.#request("v1/chat/completions", { method: "POST", body: JSON.stringify(body) });
      const id = response.headers.get("x-limelight-stream");
      if (id !== null) this.answer.stream = { id, last: null };
      this.#changed();
      if (!(await this.#read(response))) await this.#resume();
    });
  }

  /** Goes on with an answer that was begun before this page was loaded, or by another one. */
  resume() {
    return this.#until(() => this.#resume());
  }

  /** Ends the answer, here and at the server. */
  async stop() {
    const { stream } = this.answer;
    this.#stopped = true;
    this.#connection.abort();
    this.#retryNow();
    // Without its id the stream has not begun: then the end of the connection is the end of the request.
    if (stream === null) return;
    const options = { method: "DELETE", keepalive: true };
    await request(`v1/streams/${encodeURIComponent(stream.id)}`, options).catch(() => {}); // or it ends for want of a reader
  }

  /** Tries to connect again now, if that is what it waits for. */
  retry() {
    this.#retryNow();
  }

  async #until(work) {
    const { answer } = this;
    try {
      await work();
      answer.status = this.#stopped ? "stopped" : "done";
    } catch (error) {
      if (this.#stopped || error.code === "request_cancelled") answer.status = "stopped";
      else {
        answer.status = LOST.includes(error.code) ? "lost" : "failed";
        answer.error = error instanceof ServerError ? error.message : null;
      }
    }
    answer.stream = null;
    this.waiting = null;
  }

  /** Reads on after the last event that came, again and again until the stream has ended. */
  async #resume() {
    const { stream } = this.answer;
    if (stream === null) throw new StreamFailure(0, { code: "stream_gone", message: "" });
    let pause = FIRST_PAUSE_SECONDS;
    while (!this.#stopped) {
      const { last } = stream;
      try {
        const headers = last === null ? {} : { "last-event-id": last };
        const response = await this.#request(`v1/streams/${encodeURIComponent(stream.id)}`, { headers });
        if (response.status === 204 || (await this.#read(response))) return;
      } catch (error) {
        if (error instanceof StreamFailure || error.status < 500) throw error;
      }
      if (stream.last !== last) pause = FIRST_PAUSE_SECONDS;
      await this.#pause(pause);
      pause = Math.min(2 * pause, LONGEST_PAUSE_SECONDS);
    }
  }

  /** The response, after asking for a key as often as the server wants another one. */
  async #request(path, options) {
    const headers = { ...options.headers, "x-limelight-progress": "1", "x-limelight-resumable": "1" };
    for (;;) {
      this.#connection = new AbortController();
      if (this.#stopped) this.#connection.abort();
      try {
        return await request(path, { ...options, headers, signal: this.#connection.signal });
      } catch (error) {
        if (error.status !== 401) throw error;
        this.#wait({ name: "key" });
        await askForKey();
        this.#wait({ name: "server" });
      }
    }
  }

  /** Reads until the answer ends, then true, or the connection, then false. Throws what the stream tells as an error. */
  async #read(response) {
    const cut = () => this.#connection.abort();
    let watch = null;
    const listen = () => {
      clearTimeout(watch);
      watch = setTimeout(cut, SILENCE_MILLISECONDS);
    };
    const comment = (text) => {
      listen();
      this.#progress(text);
    };
    addEventListener("offline", cut);
    try {
      listen();
      for await (const event of events(response.body, comment)) {
        listen();
        if (event.data === "[DONE]") return true;
        this.#take(JSON.parse(event.data), event.id);
      }
    } catch (error) {
      if (error instanceof StreamFailure) throw error;
    } finally {
      clearTimeout(watch);
      removeEventListener("offline", cut);
    }
    return false;
  }

  /** What came, and how far that is, change together: what is kept of an answer fits the place to go on from. */
  #take(chunk, id) {
    if (chunk.error) throw new StreamFailure(500, chunk.error);
    if (addChunk(this.answer, chunk)) this.#tick();
    if (this.answer.stream !== null) this.answer.stream.last = id;
    this.#wait(null);
  }

  /** The browser's own clock, for answers of which the server tells no timings. Seconds since the question. */
  #tick() {
    if (this.#asked === null) return;
    const now = (performance.now() - this.#asked) / 1000;
    const { clock } = this.answer;
    this.answer.clock = { first: clock?.first ?? now, last: now, pieces: (clock?.pieces ?? 0) + 1 };
  }

  #progress(comment) {
    if (!comment.startsWith("progress ")) return;
    const { queue_position: place, prompt_tokens: all, prompt_tokens_done: done } = JSON.parse(comment.slice(9));
    this.#wait(place > 0 ? { name: "queue", place } : { name: "prompt", done, all });
  }

  #wait(waiting) {
    this.waiting = waiting;
    this.#changed();
  }

  /** Until `seconds` are over, the network is back, or the answer is stopped. */
  async #pause(seconds) {
    this.#wait({ name: "lost", seconds });
    let timer = null;
    await new Promise((resume) => {
      this.#retryNow = resume;
      timer = setTimeout(resume, seconds * 1000);
      addEventListener("online", resume, { once: true });
      if (this.#stopped) resume();
    });
    clearTimeout(timer);
    removeEventListener("online", this.#retryNow);
  }
}
