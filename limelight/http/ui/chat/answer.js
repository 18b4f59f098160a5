// An answer from the chunks of its stream.

/** Adds a chunk to an answer; returns whether it brought something of the model's. */
export function addChunk(answer, chunk) {
  answer.request ??= chunk.id ?? null;
  answer.usage = chunk.usage ?? answer.usage;
  answer.timings = chunk.timings ?? answer.timings;
  const choice = chunk.choices?.[0];
  if (choice === undefined) return false;
  answer.finish_reason = choice.finish_reason ?? answer.finish_reason;
  const { content, reasoning, reasoning_content: otherName, tool_calls: pieces } = choice.delta;
  answer.content += content ?? "";
  answer.reasoning += reasoning ?? otherName ?? "";
  for (const piece of pieces ?? []) addToCall(answer.tool_calls, piece);
  return Boolean(content || reasoning || otherName || pieces);
}

function addToCall(calls, { index, id, function: part }) {
  while (calls.length <= index) calls.push({ id: "", name: "", arguments: "" });
  const call = calls[index];
  call.id ||= id ?? "";
  call.name += part?.name ?? "";
  call.arguments += part?.arguments ?? "";
}

/** JSON with two blanks for each level, or the text as it is where it is none: `{ text, error }`. */
export function prettyJson(text) {
  try {
    return { text: JSON.stringify(JSON.parse(text), null, 2), error: null };
  } catch (error) {
    return { text, error: error.message };
  }
}

/**
 * How fast an answer came: seconds to the first token, tokens per second, and where both are from, "server" or
 * "browser". What is not known is null.
 */
export function speed(answer) {
  const { timings, usage, clock } = answer;
  const tokens = usage?.completion_tokens ?? clock?.pieces ?? null;
  if (timings !== null) {
    const first = timings.time_to_first_token_ms;
    const between = timings.decode_ms;
    return {
      source: "server",
      first: first === null ? null : first / 1000,
      rate: tokens > 1 && between > 0 ? ((tokens - 1) * 1000) / between : null,
    };
  }
  if (clock === null) return { source: null, first: null, rate: null };
  const seconds = clock.last - clock.first;
  return { source: "browser", first: clock.first, rate: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null };
}
