// What a conversation is made of. Messages form a tree: each names its parent, and those with the same parent are versions.

/** 128 random bits. `crypto.randomUUID` is missing where a page came over plain HTTP. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * A conversation as it is kept, without its messages. `chosen` names the version that is shown, by parent id ("" at the
 * root); `titled` says that the reader gave the title.
 */
export function newConversation(settings) {
  const now = Date.now();
  return { id: newId(), title: "", titled: false, created: now, updated: now, settings: { ...settings }, chosen: {} };
}

export const userMessage = (content) => ({ id: newId(), role: "user", content, created: Date.now() });

/** The result of a tool call of an answer. */
export const toolMessage = (call, content) => ({
  id: newId(), role: "tool", content, tool_call_id: call.id, name: call.name, created: Date.now(),
});

/**
 * An answer that has not begun. `status` is "streaming", then "done", "stopped", "failed" or "lost"; `stream` says where the
 * server's stream of it is gone on with: its id, and the id of the last event that came.
 */
export const answerMessage = (model, format) => ({
  id: newId(),
  role: "assistant",
  content: "",
  reasoning: "",
  tool_calls: [],
  model,
  format,
  status: "streaming",
  error: null,
  finish_reason: null,
  request: null,
  usage: null,
  timings: null,
  clock: null,
  stream: null,
  created: Date.now(),
});

/** The calls of an answer; none of one that was not written to its end. */
export function completeCalls(answer) {
  return answer.status === "done" && answer.finish_reason !== "length" ? answer.tool_calls : [];
}

/** Whether an answer is one that the model could go on with: it was cut, or its end was lost. */
export function canGoOn(answer) {
  const isCut = answer.finish_reason === "length" || ["stopped", "lost", "failed"].includes(answer.status);
  return isCut && answer.format === "text" && answer.content !== "" && answer.tool_calls.length === 0;
}

/** The first line of the first question, at most 60 characters. */
export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0].replace(/\s+/g, " ");
  const letters = Array.from(line);
  return letters.length <= 60 ? line : `${letters.slice(0, 59).join("")}…`;
}
