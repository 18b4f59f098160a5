// The table of running requests: one row each, kept while its request runs.

import { arrowKeys, keepTabStop } from "./arrow-keys.js";
import { append, KeyedChildren, setAttribute, setText } from "./dom.js";
import { count, percent, seconds } from "./format.js";
import { duration } from "./parts.js";
import { say } from "./strings.js";

/** Headings of the columns behind the request and its button, and what stands there. */
const COLUMNS = [
  ["phase", phase],
  ["age", (view, now) => seconds(duration(view, now))],
  ["prompt", prompt],
  ["output", (view) => count(view.output_tokens)],
  ["heldPages", (view) => count(view.pages)],
  ["share", (view) => percent(view.step_share)],
  ["pressure", (view) => pressure(view.delivery)],
  ["trouble", trouble],
  ["owner", (view) => view.owner ?? ""],
  ["model", (view) => view.model],
];

/** Columns whose heading has a tooltip. */
const EXPLAINED = ["heldPages", "share", "pressure", "trouble"];

export class RunningTable {
  #body;
  #empty;
  #region;
  #rows;

  /** `open(id)` shows a request, `abort(id)` ends it. */
  constructor(parent, { open, abort }) {
    this.#empty = append(parent, "p", "hint", say("noRunning"));
    this.#region = append(parent, "div", "scroll");
    const table = append(this.#region, "table");
    setAttribute(table, "aria-labelledby", "running-title");
    const head = append(append(table, "thead"), "tr");
    append(head, "th", "", say("request")).scope = "col";
    append(append(head, "td"), "span", "unseen", say("abort"));
    for (const [name] of COLUMNS) {
      const heading = append(head, "th", "", say(name));
      heading.scope = "col";
      if (EXPLAINED.includes(name)) heading.title = say(`about_${name}`);
    }
    this.#body = append(table, "tbody");
    this.#rows = new KeyedChildren(this.#body, ({ view }) => new Row(view, open, abort));
    arrowKeys(this.#body, "tr");
  }

  draw(views, now) {
    this.#empty.hidden = views.length > 0;
    this.#region.hidden = views.length === 0;
    const focused = this.#body.contains(document.activeElement);
    this.#rows.show(views.map((view) => ({ view, now })), ({ view }) => view.id);
    keepTabStop(this.#body);
    if (focused && !this.#body.contains(document.activeElement)) this.#body.querySelector('[tabindex="0"]')?.focus();
  }

  /** Its abort has been refused: it may be tried again. */
  abortFailed(id) {
    this.#rows.get(id)?.mayBeAborted();
  }
}

class Row {
  root = document.createElement("tr");
  #cells;
  #abort;

  constructor(view, open, abort) {
    const { id } = view;
    const heading = append(this.root, "th");
    heading.scope = "row";
    const opener = append(heading, "button", "link", id);
    setAttribute(opener, "aria-label", say("openLabel", { id }));
    this.#abort = append(append(this.root, "td"), "button", "quiet abort", say("abort"));
    this.#cells = COLUMNS.map(([name]) => append(this.root, "td", `cell-${name}`));
    setAttribute(this.#abort, "aria-label", say("abortLabel", { id }));
    for (const button of [opener, this.#abort]) Object.assign(button, { type: "button", tabIndex: -1 });
    opener.addEventListener("click", () => open(id));
    this.#abort.addEventListener("click", () => {
      if (this.#abort.getAttribute("aria-disabled") === "true") return;
      setAttribute(this.#abort, "aria-disabled", "true");
      setText(this.#abort, say("aborting"));
      abort(id);
    });
  }

  update({ view, now }) {
    setAttribute(this.root, "data-phase", view.phase);
    COLUMNS.forEach(([, text], place) => setText(this.#cells[place], text(view, now)));
  }

  mayBeAborted() {
    setAttribute(this.#abort, "aria-disabled", null);
    setText(this.#abort, say("abort"));
  }
}

/** Its phase, and in the queue its place: 1 is served next. */
function phase(view) {
  if (view.queue_position === null) return say(`phase_${view.phase}`);
  return say("queuedAt", { phase: say(`phase_${view.phase}`), place: count(view.queue_position) });
}

/** Tokens of the prompt that are computed, of all, and how many of them came from the prefix cache. */
export function prompt(view) {
  const values = { done: count(view.prompt_tokens_done), all: count(view.prompt_tokens), cached: count(view.cached_tokens) };
  return say(view.cached_tokens > 0 ? "promptCached" : "promptTokens", values);
}

/** Preemptions and stalls, in words; "" for neither. */
export function trouble(view) {
  const parts = [];
  if (view.num_preemptions > 0) parts.push(say("preemptions", { count: count(view.num_preemptions) }));
  if (view.num_stalls > 0) parts.push(say("stalls", { count: count(view.num_stalls) }));
  return parts.join(", ");
}

/** How long writes have waited for the socket; one that waits now counts from its beginning. */
function pressure(delivery) {
  if (delivery === null) return "";
  const waited = seconds(delivery.seconds + (delivery.waiting_seconds ?? 0));
  return delivery.waiting_seconds > 0.1 ? say("pressureNow", { seconds: waited }) : waited;
}
