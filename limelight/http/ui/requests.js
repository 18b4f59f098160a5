// The page of requests: keeps what the feed tells, and draws it, at most once a frame and only while the page can be seen.

import { request } from "./api.js";
import { Charts } from "./charts.js";
import { Detail } from "./detail.js";
import { element, setAttribute, setText } from "./dom.js";
import { follow } from "./feed.js";
import { clock, count } from "./format.js";
import { askForKey } from "./key-dialog.js";
import { Lanes } from "./lanes.js";
import { speakChosen } from "./preferences.js";
import { RunningTable } from "./running.js";
import { say } from "./strings.js";

const MAX_RECENT = 300;

speakChosen();
document.title = `${say("title")} · Limelight`;

let live = [];
/** Those that ended, newest first. */
let recent = [];
let engine = null;
/** The server's time, and ours when it told it: ours goes on between two snapshots. */
let told = null;
let drawing = false;

const charts = new Charts(element("charts"));
const running = new RunningTable(element("running"), { open, abort });
const lanes = new Lanes({ open, redraw: schedule });
const detail = new Detail({ abort });

const now = () => (told === null ? Date.now() / 1000 : told.server + (performance.now() - told.ours) / 1000);

function schedule() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
}

function draw() {
  const at = now();
  running.draw(live, at);
  lanes.draw(live, recent, at);
  if (engine !== null) charts.draw(engine);
  if (told !== null) setText(element("figures"), figures());
}

function figures() {
  if (engine === null) return say("notRunning");
  return say("figures", {
    running: count(engine.num_running),
    waiting: count(engine.num_waiting),
    tokens: count(charts.tokensPerSecond()),
    preemptions: count(engine.num_preemptions),
  });
}

// ---- what the feed tells

function update(list) {
  told = { server: list.now, ours: performance.now() };
  engine = list.engine;
  const ended = new Set(recent.map((view) => view.id));
  live = list.data.filter((view) => !ended.has(view.id));
}

function end(views) {
  const known = new Set(recent.map((view) => view.id));
  const added = views.filter((view) => !known.has(view.id));
  if (added.length === 0) return;
  recent = [...added, ...recent].sort((one, other) => endOf(other) - endOf(one)).slice(0, MAX_RECENT);
  const ended = new Set(added.map((view) => view.id));
  live = live.filter((view) => !ended.has(view.id));
}

const endOf = (view) => view.arrived_at + view.timings.total;

follow({
  history({ samples }) {
    charts.replace(samples);
    schedule();
  },
  snapshot(list) {
    update(list);
    if (list.sample) charts.add(list.sample);
    if (live.some((view) => detail.shows(view.id))) detail.refresh();
    schedule();
  },
  ended(view) {
    end([view]);
    if (detail.shows(view.id)) detail.refresh();
    schedule();
  },
  list(list) {
    update(list);
    end(list.recent);
    schedule();
  },
  state(name, { seconds: pause, message }) {
    setAttribute(element("connection"), "data-state", name);
    const seconds = pause < 1 ? pause : Math.round(pause);
    const text = {
      connecting: () => null,
      connected: () => null,
      loading: () => say("loading"),
      lost: () => (told === null ? say("lostBefore", { seconds }) : say("lost", { seconds, time: clock(now()) })),
      refused: () => say("refused", { message }),
      missing: () => say("missing", { message }),
    }[name]();
    setText(element("connection"), say(name === "connected" ? "connected" : name === "connecting" ? "connecting" : "offline"));
    if (text !== null || name === "connected") notify(text);
    element("another-key").hidden = name !== "refused";
  },
});

// ---- what the reader does

function open(id) {
  detail.open(id);
}

async function abort(id) {
  try {
    await request(`v1/requests/${encodeURIComponent(id)}`, { method: "DELETE" });
  } catch (error) {
    running.abortFailed(id);
    const message = say("abortFailed", { id, message: error.message });
    if (detail.shows(id)) detail.fail(message);
    else notify(message);
  }
}

function notify(text) {
  element("notice").hidden = text === null;
  setText(element("notice-text"), text ?? "");
}

element("another-key").addEventListener("click", async () => {
  await askForKey();
  location.reload();
});

detail.followAddress();
