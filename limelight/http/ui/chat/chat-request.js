// What is sent: the body of a chat completion, from the messages before the answer and the settings.

import { completeCalls } from "./messages.js";
import { requestFields } from "./settings.js";

/** The body; `begun` is an answer that is to be gone on with, or null. Throws a `SettingError` for settings that make no sense. */
export function chatBody(path, settings, model, reasoningSwitch, begun = null) {
  const system = settings.system.trim();
  const messages = wireMessages(path);
  if (begun !== null) messages.push(wireAnswer(begun));
  return {
    model,
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    ...requestFields(settings, reasoningSwitch),
    ...(begun === null ? {} : { add_generation_prompt: false, continue_final_message: true }),
    stream: true,
    stream_options: { include_usage: true },
    return_timings: true,
  };
}

/** Answers that said nothing are left out, and questions that then follow each other are one: many templates want turns. */
function wireMessages(path) {
  const messages = [];
  for (const message of path) {
    const last = messages.at(-1);
    if (message.role === "user" && last?.role === "user") last.content += `\n\n${message.content}`;
    else if (message.role === "user") messages.push({ role: "user", content: message.content });
    else if (message.role === "tool") {
      messages.push({ role: "tool", tool_call_id: message.tool_call_id, content: message.content });
    } else if (message.content !== "" || completeCalls(message).length > 0) messages.push(wireAnswer(message));
  }
  return messages;
}

function wireAnswer(message) {
  const answer = { role: "assistant", content: message.content === "" ? null : message.content };
  if (message.reasoning !== "") answer.reasoning = message.reasoning;
  const calls = completeCalls(message);
  if (calls.length > 0) {
    answer.tool_calls = calls.map((call) => ({
      id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
    }));
  }
  return answer;
}
