// One request: its figures, and its spans as a waterfall with what happened in them.

import { request } from "./api.js";
import { append, element, KeyedChildren, setAttribute, setText } from "./dom.js";
import { bytes, clock, count, percent, seconds } from "./format.js";
import { prompt, trouble } from "./running.js";
import { inTree, SpanRow } from "./spans.js";
import { say } from "./strings.js";

/** What is told of a request beside its spans: a name of a text, and the value, null where there is none. */
const FACTS = [
  ["model", (view) => view.model],
  ["owner", (view) => view.owner],
  ["turns", (view) => (view.share === view.owner ? null : view.share)],
  ["shareWait", (view) => (view.share_wait_seconds ? seconds(view.share_wait_seconds) : null)],
  ["operation", (view) => view.operation],
  ["arrived", (view) => clock(view.arrived_at, 3)],
  ["errorCode", (view) => view.error_code],
  ["finishReasons", (view) => view.finish_reasons.join(", ") || null],
  ["prompt", prompt],
  ["output", (view) => count(view.output_tokens)],
  ["firstToken", (view) => known(view.timings.time_to_first_token, seconds)],
  ["perToken", (view) => known(view.timings.per_token, seconds)],
  ["total", (view) => known(view.timings.total, seconds)],
  ["stepSeconds", (view) => `${seconds(view.step_seconds)} (${percent(view.step_share)})`],
  ["pageSeconds", (view) => view.page_seconds.toFixed(1)],
  ["trouble", (view) => trouble(view) || null],
  ["delivery", (view) => known(view.delivery, delivery)],
  ["httpRequest", (view) => view.http_request_id],
  ["trace", (view) => view.trace_id],
];

const known = (value, text) => (value === null || value === undefined ? null : text(value));

const delivery = (told) =>
  say("deliveryText", {
    writes: count(told.num_writes),
    bytes: bytes(told.num_bytes),
    waited: seconds(told.seconds),
    longest: seconds(told.longest_seconds),
  });

/** The dialog that shows one request. Its id stands in the address, so that it can be linked to. */
export class Detail {
  #dialog = element("detail");
  #facts = new KeyedChildren(element("facts"), ({ name }) => new Fact(name));
  #spans = new KeyedChildren(element("spans"), ({ span }) => new SpanRow(span));
  #abort = element("detail-abort");
  #problem = element("detail-problem");
  /** The id of the request that is shown; null: none is. */
  #id = null;
  #shown = "";
  #loading = false;

  /** `abort(id)` ends a request. */
  constructor({ abort }) {
    this.#dialog.addEventListener("close", () => {
      this.#id = null;
      history.replaceState(null, "", location.pathname + location.search);
    });
    element("detail-close").addEventListener("click", () => this.#dialog.close());
    element("detail-export").addEventListener("click", () => this.#export());
    this.#abort.addEventListener("click", () => abort(this.#id));
    addEventListener("hashchange", () => this.followAddress());
  }

  /** Shows the request that the address names, if it names one. */
  followAddress() {
    const id = decoded(location.hash.slice(1));
    if (id) this.open(id);
    else if (this.#dialog.open) this.#dialog.close();
  }

  open(id) {
    const address = `#${encodeURIComponent(id)}`;
    if (location.hash !== address) history.replaceState(null, "", address);
    if (this.#id !== id) {
      this.#shown = "";
      this.#facts.show([], String);
      this.#spans.show([], String);
    }
    this.#id = id;
    setText(element("detail-title"), id);
    setText(element("detail-state"), "");
    this.#abort.hidden = true;
    this.#tell(null);
    if (!this.#dialog.open) this.#dialog.showModal();
    this.refresh();
  }

  /** Whether `id` is on the screen. */
  shows(id) {
    return this.#id === id;
  }

  get id() {
    return this.#id;
  }

  /** Fetches the request again; one that is opened meanwhile is fetched next. */
  async refresh() {
    if (this.#loading) return;
    this.#loading = true;
    for (let id = null; this.#id !== null && this.#id !== id; ) {
      id = this.#id;
      await this.#load(id);
    }
    this.#loading = false;
  }

  async #load(id) {
    try {
      const text = await (await request(`v1/requests/${encodeURIComponent(id)}`)).text();
      if (this.#id !== id || text === this.#shown) return;
      this.#draw(JSON.parse(text));
      this.#shown = text;
      this.#tell(null);
    } catch (error) {
      if (this.#id === id) this.#tell(say("detailFailed", { id, message: error.message }));
    }
  }

  /** Something went wrong with the request that is shown. */
  fail(message) {
    this.#tell(message);
  }

  #tell(message) {
    this.#problem.hidden = message === null;
    setText(this.#problem, message ?? "");
  }

  #draw(view) {
    this.#id = view.id; // an answer to several prompts has one id, each of its requests its own
    setText(element("detail-title"), view.id);
    const state = view.ending === null ? say(`phase_${view.phase}`) : say(`ending_${view.ending}`);
    setText(element("detail-state"), state);
    setAttribute(element("detail-state"), "data-ending", view.ending ?? "running");
    this.#abort.hidden = view.ending !== null;
    const facts = FACTS.map(([name, text]) => ({ name, text: text(view) }));
    this.#facts.show(facts.filter(({ text }) => text !== null), ({ name }) => name);
    const start = Math.min(0, ...view.spans.map((span) => span.start));
    const length = Math.max(0.000001, ...view.spans.map((span) => span.end)) - start;
    const spans = inTree(view.spans).map(({ span, depth }) => ({ span, depth, start, length }));
    this.#spans.show(spans, ({ span }) => span.key);
  }

  async #export() {
    const id = this.#id;
    try {
      const trace = await (await request(`v1/requests/${encodeURIComponent(id)}/trace`)).blob();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(trace);
      link.download = `${id.replace(/[^\w.-]/g, "_")}.otlp.json`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    } catch (error) {
      if (this.#id === id) this.#tell(say("exportFailed", { message: error.message }));
    }
  }
}

class Fact {
  root = document.createElement("div");
  #value;

  constructor(name) {
    append(this.root, "dt", "", say(name));
    this.#value = append(this.root, "dd");
  }

  update({ text }) {
    setText(this.#value, text);
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
