// Spans of one request: their order, and the row of each with its bar, events and attributes.

import { append, setAttribute, setText } from "./dom.js";
import { seconds } from "./format.js";
import { say } from "./strings.js";

const PARTS = ["admission", "tokenize", "constraints", "queue", "prefill", "decode"];
const KINDS = ["stall", "preempted", "resumed", "chunk", "token"];
const STALL_SECONDS = "limelight.stall.seconds";

/** One span: its bar, and, opened, its attributes and events. */
export class SpanRow {
  root = document.createElement("details");
  #summary = append(this.root, "summary");
  #name = append(this.#summary, "span", "span-name");
  #long = append(this.#summary, "span", "span-seconds");
  #track = append(this.#summary, "span", "track");
  #bar = append(this.#track, "span", "stretch");
  #events = append(this.#track, "span", "span-events");
  #body = append(this.root, "div", "span-body");
  #drawn = "";

  constructor(span) {
    setAttribute(this.root, "data-span", span.key);
    append(this.#bar, "span", `part ${partOf(span.key)}`);
  }

  update({ span, depth, start, length }) {
    const drawn = JSON.stringify([span, depth, start, length]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const percentage = (at) => `${((at / length) * 100).toFixed(3)}%`;
    setText(this.#name, span.error === null ? span.name : `✕ ${span.name}`);
    this.#name.style.paddingInlineStart = `${depth * 0.9}rem`;
    setText(this.#long, seconds(span.end - span.start));
    this.#bar.style.left = percentage(span.start - start);
    this.#bar.style.width = percentage(span.end - span.start);
    setAttribute(this.#summary, "aria-label", say("spanLabel", {
      name: span.name, seconds: seconds(span.end - span.start), start: seconds(span.start),
    }));
    this.#events.replaceChildren();
    for (const [from, to] of pausesIn(span)) {
      const pause = append(this.#events, "span", "pause");
      pause.style.left = percentage(from - start);
      pause.style.width = percentage(to - from);
    }
    for (const event of span.events) {
      const tick = append(this.#events, "span", `tick ${kindOf(event.name)}`);
      tick.title = `${event.name} ${say("eventAt", { time: seconds(event.at) })}`;
      tick.style.left = percentage(event.at - start);
    }
    this.#drawBody(span);
  }

  #drawBody(span) {
    this.#body.replaceChildren();
    if (span.error !== null) append(this.#body, "p", "error", say("spanError", { error: span.error }));
    if (span.events.length > 0) {
      append(this.#body, "h4", "", say("events"));
      const list = append(this.#body, "ol", "events");
      for (const event of span.events) {
        const item = append(list, "li");
        append(item, "span", `tick-name ${kindOf(event.name)}`, event.name);
        append(item, "span", "hint", ` ${say("eventAt", { time: seconds(event.at) })} `);
        append(item, "code", "", pairs(event.attributes).map(([name, value]) => `${name}=${value}`).join(" "));
      }
    }
    if (Object.keys(span.attributes).length === 0) return;
    append(this.#body, "h4", "", say("attributes"));
    const list = append(this.#body, "dl", "attributes");
    for (const [name, value] of pairs(span.attributes)) {
      append(list, "dt", "", name);
      append(list, "dd", "", value);
    }
  }
}

const pairs = (attributes) => Object.entries(attributes).map(([name, value]) => [name, shown(value)]);

function shown(value) {
  if (Array.isArray(value)) return value.join(", ");
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);
}

/** Spans below the ones that hold them, siblings by their start. One whose parent is not among them stands at the top. */
export function inTree(spans) {
  const keys = new Set(spans.map((span) => span.key));
  const below = new Map();
  for (const span of spans) {
    const parent = keys.has(span.parent) ? span.parent : null;
    below.set(parent, [...(below.get(parent) ?? []), span]);
  }
  const walk = (parent, depth) =>
    (below.get(parent) ?? [])
      .toSorted((one, other) => one.start - other.start)
      .flatMap((span) => [{ span, depth }, ...walk(span.key, depth + 1)]);
  return walk(null, 0);
}

/** `[from, to]` of the times in which no token came: before a stall's late token, and from a preemption on. */
function pausesIn(span) {
  return span.events.flatMap((event, place) => {
    const kind = kindOf(event.name);
    if (kind === "stall") return [[Math.max(span.start, event.at - (event.attributes[STALL_SECONDS] ?? 0)), event.at]];
    if (kind !== "preempted") return [];
    const resumed = span.events.slice(place + 1).find((later) => kindOf(later.name) === "resumed");
    return [[event.at, resumed?.at ?? span.end]];
  });
}

const kindOf = (name) => KINDS.find((kind) => name.endsWith(kind)) ?? "other";
const partOf = (key) => PARTS.find((part) => key.endsWith(part)) ?? "whole";
