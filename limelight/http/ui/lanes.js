// Requests as waterfalls on a common time axis: one lane each, running ones first, then those that ended, newest first.

import { arrowKeys, keepTabStop } from "./arrow-keys.js";
import { append, element, KeyedChildren, setAttribute, setText } from "./dom.js";
import { clock, count, seconds, ticks } from "./format.js";
import { duration, partsOf, PARTS } from "./parts.js";
import { trouble } from "./running.js";
import { say } from "./strings.js";

/** Pixels; a label further to the right would not fit. */
const ROOM_FOR_LABEL = 75;

export class Lanes {
  #list = element("lanes");
  #axis = element("axis");
  #number = element("lanes-shown");
  #endings = element("lanes-endings");
  #origin = element("lanes-axis");
  #rows;

  /** `open(id)` shows a request; `redraw()` is asked for when the reader has chosen something else. */
  constructor({ open, redraw }) {
    this.#rows = new KeyedChildren(this.#list, ({ view }) => new Lane(view, open));
    for (const select of [this.#number, this.#endings, this.#origin]) select.addEventListener("change", redraw);
    for (const part of PARTS) {
      const item = append(element("legend"), "li");
      append(item, "span", `part ${part}`);
      append(item, "span", "", say(`part_${part}`));
    }
    arrowKeys(this.#list, "li");
  }

  /** `live` and `recent` are views, `recent` newest first; `now` is Unix seconds. */
  draw(live, recent, now) {
    const bad = this.#endings.value === "bad";
    const matching = bad ? recent.filter((view) => view.ending !== "completed") : recent;
    const ended = this.#number.value === "all" ? matching : matching.slice(0, Number(this.#number.value));
    const views = bad ? ended : [...live.toReversed(), ...ended];
    element("no-lanes").hidden = views.length > 0;
    setText(element("no-lanes"), say(recent.length > 0 ? "noneShown" : "noRecent"));
    const scale = this.#origin.value === "clock" ? byClock(views, now) : fromArrival(views, now);
    this.#drawAxis(scale, views.length > 0);
    this.#rows.show(views.map((view) => ({ view, now, scale })), ({ view }) => view.id);
    keepTabStop(this.#list);
  }

  #drawAxis(scale, shown) {
    this.#axis.hidden = !shown;
    if (!shown) return;
    const room = ROOM_FOR_LABEL / Math.max(this.#axis.clientWidth, ROOM_FOR_LABEL);
    const last = scale.end - (scale.end - scale.start) * room;
    const labels = ticks(scale.start, last).map((at) => [at, scale.label(at)]);
    if (this.#axis.dataset.labels === JSON.stringify([scale.start, labels])) return;
    this.#axis.dataset.labels = JSON.stringify([scale.start, labels]);
    this.#axis.replaceChildren(...labels.map(([at, label]) => {
      const tick = document.createElement("span");
      tick.textContent = label;
      tick.style.left = share(at - scale.start, scale.end - scale.start);
      return tick;
    }));
  }
}

/** From the first arrival to the last end, or to now while something runs. */
function byClock(views, now) {
  const start = Math.min(...views.map((view) => view.arrived_at));
  const last = Math.max(...views.map((view) => view.arrived_at + duration(view, now)));
  const end = Math.max(last, start + 0.001);
  const digits = end - start < 0.05 ? 3 : end - start < 5 ? 1 : 0;
  return { start, end, startOf: (view) => view.arrived_at, label: (at) => clock(at, digits) };
}

function fromArrival(views, now) {
  const longest = Math.max(...views.map((view) => duration(view, now)));
  return { start: 0, end: Math.max(longest, 0.001), startOf: () => 0, label: (at) => (at === 0 ? "0" : seconds(at)) };
}

class Lane {
  root = document.createElement("li");
  #button = append(this.root, "button", "lane");
  #state = append(this.#button, "span", "lane-state");
  #figures = append(this.#button, "span", "lane-figures");
  #track = append(this.#button, "span", "track");
  #bar = append(this.#track, "span", "stretch");
  #parts = new KeyedChildren(this.#bar, ({ part }) => new Part(part));
  /** The view that was drawn last: the parts of one that has ended stay as they are. */
  #drawn = null;

  constructor(view, open) {
    Object.assign(this.#button, { type: "button", tabIndex: -1 });
    this.#button.addEventListener("click", () => open(view.id));
  }

  update({ view, now, scale }) {
    const total = duration(view, now);
    this.#bar.style.left = share(scale.startOf(view) - scale.start, scale.end - scale.start);
    this.#bar.style.width = share(total, scale.end - scale.start);
    if (view === this.#drawn && view.ending !== null) return;
    this.#drawn = view;
    const state = view.ending === null ? say(`phase_${view.phase}`) : say(`ending_${view.ending}`);
    const parts = partsOf(view, now);
    setAttribute(this.root, "data-ending", view.ending ?? "running");
    setText(this.#state, state);
    setText(this.#figures, [seconds(total), trouble(view)].filter(Boolean).join(" · "));
    this.#parts.show(parts.map((part) => ({ ...part, total })), ({ part }) => part);
    const phases = parts.map(({ part, seconds: long }) => `${say(`part_${part}`)} ${seconds(long)}`).join(", ");
    const label = say("lane", {
      ending: state, total: seconds(total), phases, output: count(view.output_tokens), model: view.model, id: view.id,
    });
    setAttribute(this.#button, "aria-label", label);
    setAttribute(this.#button, "title", label);
  }
}

class Part {
  root = document.createElement("span");
  #name;

  constructor(part) {
    this.root.className = `part ${part}`;
    this.#name = say(`part_${part}`);
  }

  update({ start, seconds: long, total }) {
    this.root.style.left = share(start, total);
    this.root.style.width = share(long, total);
    setText(this.root, `${this.#name} ${seconds(long)}`);
  }
}

const share = (part, whole) => `${((whole > 0 ? part / whole : 0) * 100).toFixed(3)}%`;
