// The parts of a request's time, from a view of it: they follow each other without a gap from its arrival to its end, or to now.

export const PARTS = ["admission", "tokenize", "queue", "prefill", "decode", "finish"];
const PART_OF_PHASE = { tokenizing: "tokenize", queued: "queue", prefill: "prefill", decode: "decode" };

/** Seconds from the arrival to the end, or to `now` (Unix seconds, by the clock of the server). */
export function duration(view, now) {
  return view.timings.total ?? Math.max(0, now - view.arrived_at);
}

/** `[{ part, start, seconds }]`, `start` in seconds after the arrival. What is not over yet, or never was, is the last part. */
export function partsOf(view, now) {
  const parts = [];
  let at = 0;
  for (const part of PARTS.slice(0, -1)) {
    const seconds = view.timings[part] ?? null;
    if (seconds === null) continue;
    parts.push({ part, start: at, seconds });
    at += seconds;
  }
  const rest = duration(view, now) - at;
  if (rest <= 0) return parts;
  const part = unfinished(view);
  const last = parts.at(-1);
  if (last?.part === part) last.seconds += rest;
  else parts.push({ part, start: at, seconds: rest });
  return parts;
}

function unfinished(view) {
  if (view.ending === null) return PART_OF_PHASE[view.phase];
  return PARTS.find((part) => part === "finish" || (view.timings[part] ?? null) === null);
}
