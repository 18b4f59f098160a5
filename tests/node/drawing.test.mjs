// When answers are drawn again, by a clock and frames of the test's own.
import "./page-modules.mjs";
import assert from "node:assert/strict";
import test from "node:test";

const { Drawing } = await import("../../limelight/http/ui/chat/view/drawing.js");

const FRAME = 16;

/** Time of a page of its own: `run` goes on to a moment, through timers and frames in their order. */
function withTime(act) {
  const kept = { performance: globalThis.performance, setTimeout: globalThis.setTimeout };
  let now = 0;
  let due = [];
  const after = (delay, run) => due.push({ at: now + delay, run });
  Object.defineProperty(globalThis, "performance", { value: { now: () => now }, configurable: true });
  globalThis.setTimeout = (run, delay) => after(delay, run);
  globalThis.requestAnimationFrame = (run) => after(FRAME - (now % FRAME), run);
  try {
    act({
      spend: (milliseconds) => { now += milliseconds; },
      runTo(moment) {
        for (;;) {
          due.sort((one, other) => one.at - other.at);
          if (due.length === 0 || due[0].at > moment) break;
          const { at, run } = due.shift();
          now = Math.max(now, at);
          run();
        }
        now = Math.max(now, moment);
      },
    });
  } finally {
    Object.defineProperty(globalThis, "performance", { value: kept.performance, configurable: true });
    globalThis.setTimeout = kept.setTimeout;
    delete globalThis.requestAnimationFrame;
  }
}

function numDrawn(milliseconds, drawingTakes) {
  let count = 0;
  withTime((time) => {
    const drawing = new Drawing(() => { count += 1; time.spend(drawingTakes); });
    for (let moment = 0; moment < milliseconds; moment += 1) {
      drawing.request();
      time.runTo(moment);
    }
  });
  return count;
}

test("what is quick to draw is drawn once a frame", () => {
  assert.equal(numDrawn(1600, 0), 1600 / FRAME - 1);
});

test("what takes long is drawn a quarter of the time", () => {
  const count = numDrawn(10_000, 100);
  assert.ok(count >= 20 && count <= 25, `${count} times 100 ms in 10 s`);
});

test("the last change is drawn, too", () => {
  withTime((time) => {
    let value = 0;
    let shown = null;
    const drawing = new Drawing(() => { shown = value; time.spend(50); });
    for (value = 1; value <= 5; value += 1) {
      drawing.request();
      time.runTo(value);
    }
    value = 6;
    drawing.request();
    time.runTo(1000);
    assert.equal(shown, 6);
  });
});
