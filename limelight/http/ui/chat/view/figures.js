// What stands under an answer: how fast it came, what it took from the cache, how it ended, and a link to its waterfall.

import { append } from "../../dom.js";
import { count, seconds } from "../../format.js";
import { say } from "../../strings.js";
import { speed } from "../answer.js";

export function showFigures(root, answer) {
  const { source, first, rate } = speed(answer);
  const parts = [];
  if (rate !== null) parts.push(say("rate", { rate: rate.toFixed(1) }));
  if (first !== null) parts.push(say("first", { seconds: seconds(first) }));
  const { usage } = answer;
  if (usage !== null) {
    parts.push(say("tokens", { count: count(usage.completion_tokens) }));
    const cached = answer.timings?.cached_tokens ?? usage.prompt_tokens_details?.cached_tokens ?? 0;
    if (cached > 0) parts.push(say("cached", { cached: count(cached), prompt: count(usage.prompt_tokens) }));
  }
  if (answer.status === "stopped") parts.push(say("stopped"));
  if (answer.finish_reason === "length") parts.push(say("cut"));
  root.textContent = parts.join(" · ");
  root.title = source === null ? "" : say(source === "server" ? "byServer" : "byBrowser");
  if (answer.request === null) return;
  if (parts.length > 0) root.append(" · ");
  append(root, "a", "", say("waterfall")).href = `ui/requests#${encodeURIComponent(answer.request)}`;
}

/** What an answer waits for, as `Run.waiting` tells it. */
export function waitingText({ name, ...values }) {
  const texts = { server: "waitServer", queue: "waitQueue", prompt: "waitPrompt", key: "waitKey", lost: "waitLost" };
  return say(texts[name], values);
}
