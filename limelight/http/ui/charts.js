// Charts of the last minutes: SVG paths over the samples of the feed. The cursor of a chart is a slider, for keys and screen readers.

import { append, setAttribute, setText } from "./dom.js";
import { count, seconds } from "./format.js";
import { say } from "./strings.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 100;
const SHORTEST_SECONDS = 60;
const MAX_SAMPLES = 600;
/** Samples that the rate of tokens is the mean of: a step may take longer than the time between two. */
const RATE_SAMPLES = 10;

/** A limit is drawn where it is not so far up that everything else would lie on the ground. */
const MAX_LIMIT_RATIO = 4;

/** Title, how values read, and series: name, mark (area, line, limit, or a figure without one) and value of a sample, null where there is none. */
const CHARTS = [
  { title: "batch", format: count, series: [
    ["running", "area", (sample) => sample.num_running],
    ["waiting", "line", (sample) => sample.num_waiting],
    ["seats", "limit", (_, engine) => engine.num_seats],
  ] },
  { title: "pages", format: count, series: [
    ["usedPages", "area", (sample, engine) => engine.num_pages - sample.num_free_pages],
    ["cachedPages", "line", (sample) => sample.num_cached_pages],
    ["freePages", "figure", (sample) => sample.num_free_pages],
    ["allPages", "limit", (_, engine) => engine.num_pages],
  ] },
  { title: "stepTime", format: seconds, series: [
    ["mean", "area", (sample) => (sample.num_steps ? sample.step_seconds / sample.num_steps : null)],
    ["longest", "line", (sample) => (sample.num_steps ? sample.longest_step_seconds : null)],
  ] },
  { title: "loopLag", format: seconds, series: [["lag", "area", (sample) => sample.lag_seconds]] },
];

/** All charts, over one list of samples. */
export class Charts {
  #samples = [];
  #charts;

  constructor(parent) {
    this.#charts = CHARTS.map((description) => new Chart(parent, description));
  }

  replace(samples) {
    this.#samples = samples.slice(-MAX_SAMPLES);
  }

  add(sample) {
    if (sample.at <= (this.#samples.at(-1)?.at ?? 0)) return;
    this.#samples.push(sample);
    if (this.#samples.length > MAX_SAMPLES) this.#samples.shift();
  }

  /** Of the last ten seconds. */
  tokensPerSecond() {
    const last = this.#samples.slice(-RATE_SAMPLES);
    return last.reduce((sum, sample) => sum + sample.num_tokens, 0) / Math.max(1, last.length);
  }

  draw(engine) {
    for (const chart of this.#charts) chart.draw(this.#samples, engine);
  }
}

class Chart {
  #description;
  #samples = [];
  #values = [];
  #start = 0;
  #end = 1;
  /** How many samples before the newest one the cursor is; null: there is no cursor. */
  #cursor = null;
  #paths;
  #shown;
  #top;
  #left;
  #slider;
  #line;
  #when;

  constructor(parent, description) {
    this.#description = description;
    const figure = append(parent, "figure", "chart");
    const caption = append(figure, "figcaption");
    append(caption, "span", "chart-title", say(description.title));
    this.#when = append(caption, "span", "hint");
    const legend = append(figure, "ul", "legend");
    this.#shown = description.series.map(([name, mark]) => {
      const item = append(legend, "li");
      append(item, "span", `mark ${mark}`);
      append(item, "span", "", `${say(name)} `);
      return append(item, "b");
    });
    const plot = append(figure, "div", "plot");
    this.#top = append(plot, "span", "plot-top");
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    plot.append(svg);
    this.#paths = description.series.map(([, mark]) => path(svg, mark));
    this.#line = path(svg, "cursor");
    const times = append(figure, "div", "plot-times hint");
    this.#left = append(times, "span");
    append(times, "span", "", say("now"));
    this.#slider = plot;
    plot.tabIndex = 0;
    setAttribute(plot, "role", "slider");
    setAttribute(plot, "aria-label", say(description.title));
    plot.title = say("chartHelp");
    this.#listen();
  }

  draw(samples, engine) {
    if (samples.length === 0) return;
    this.#samples = samples;
    this.#end = samples.at(-1).at;
    this.#start = Math.min(samples[0].at, this.#end - SHORTEST_SECONDS);
    this.#values = this.#description.series.map(([, , value]) => samples.map((sample) => value(sample, engine)));
    const most = this.#most();
    const top = most > 0 ? most * 1.05 : 1;
    this.#values.forEach((values, place) => {
      const mark = this.#description.series[place][1];
      this.#paths[place].setAttribute("d", this.#outline(values, top, mark));
    });
    setText(this.#top, most > 0 ? this.#description.format(most) : "");
    setText(this.#left, say("ago", { time: seconds(this.#end - this.#start) }));
    this.#point();
  }

  #most() {
    const most = this.#values.map((values) => Math.max(...values));
    const marked = (...marks) => most.filter((_, place) => marks.includes(this.#description.series[place][1]));
    const highest = Math.max(...marked("area", "line"));
    return Math.max(highest, ...marked("limit").filter((limit) => limit <= highest * MAX_LIMIT_RATIO));
  }

  #outline(values, top, mark) {
    const y = (value) => (HEIGHT - (value / top) * HEIGHT).toFixed(1);
    if (mark === "figure") return "";
    if (mark === "limit") return values.at(-1) > top ? "" : `M0 ${y(values.at(-1))}H${WIDTH}`;
    const points = values.map((value, place) => `${this.#x(place).toFixed(1)} ${y(value)}`).join("L");
    return mark === "area" ? `M${this.#x(0).toFixed(1)} ${HEIGHT}L${points}V${HEIGHT}Z` : `M${points}`;
  }

  #x(place) {
    return ((this.#samples[place].at - this.#start) / (this.#end - this.#start)) * WIDTH;
  }

  /** Shows the values at the cursor, or the newest. */
  #point() {
    const newest = this.#samples.length - 1;
    if (newest < 0) return;
    const place = Math.max(0, newest - (this.#cursor ?? 0));
    const { format, series } = this.#description;
    const texts = this.#values.map((values) => format(values[place]));
    texts.forEach((text, number) => setText(this.#shown[number], text));
    const age = this.#end - this.#samples[place].at;
    const time = this.#cursor === null ? "" : say("ago", { time: seconds(age) });
    setText(this.#when, time);
    this.#line.setAttribute("d", this.#cursor === null ? "" : `M${this.#x(place).toFixed(1)} 0V${HEIGHT}`);
    setAttribute(this.#slider, "aria-valuemin", -newest);
    setAttribute(this.#slider, "aria-valuemax", 0);
    setAttribute(this.#slider, "aria-valuenow", place - newest);
    setAttribute(this.#slider, "aria-valuetext", [time || say("now"), ...this.#summary(texts, series, format)].join(", "));
  }

  #summary(texts, series, format) {
    return series.map(([name, mark], number) =>
      mark === "limit"
        ? `${say(name)}: ${texts[number]}`
        : say("chartSummary", { label: say(name), now: texts[number], most: format(Math.max(...this.#values[number])) }));
  }

  #listen() {
    const move = (cursor) => {
      this.#cursor = cursor;
      this.#point();
    };
    this.#slider.addEventListener("keydown", (event) => {
      const newest = this.#samples.length - 1;
      const steps = { ArrowLeft: 1, ArrowDown: 1, ArrowRight: -1, ArrowUp: -1, PageUp: -30, PageDown: 30, Home: newest, End: -newest };
      if (event.key === "Escape") move(null);
      if (!(event.key in steps)) return;
      event.preventDefault();
      move(Math.min(newest, Math.max(0, (this.#cursor ?? 0) + steps[event.key])));
    });
    this.#slider.addEventListener("pointermove", (event) => {
      if (this.#samples.length === 0) return;
      const box = this.#slider.getBoundingClientRect();
      const at = this.#start + ((event.clientX - box.left) / box.width) * (this.#end - this.#start);
      const place = this.#samples.findIndex((sample) => sample.at >= at);
      move(place < 0 ? 0 : this.#samples.length - 1 - place);
    });
    for (const leaving of ["pointerleave", "blur"]) this.#slider.addEventListener(leaving, () => move(null));
  }
}

function path(svg, className) {
  const drawn = document.createElementNS(SVG, "path");
  drawn.setAttribute("class", className);
  drawn.setAttribute("vector-effect", "non-scaling-stroke");
  svg.append(drawn);
  return drawn;
}
