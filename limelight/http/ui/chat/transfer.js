// Conversations as a file, and back. A file is looked through before anything of it is kept.

import { readSettings } from "./settings.js";

const FORMAT = "limelight-conversations";
const VERSION = 1;
const STATUSES = ["done", "stopped", "failed", "lost"];

/** The text of a file with `conversations`, each with its `messages`. Streams of the server are left out. */
export function exportText(conversations) {
  const clean = conversations.map(({ messages, ...conversation }) => ({
    ...conversation,
    messages: messages.map(({ stream, conversation: _, ...message }) => message),
  }));
  return JSON.stringify({ format: FORMAT, version: VERSION, exported: new Date().toISOString(), conversations: clean });
}

/** What is wrong with a file: the text that says it, and its values; `place` says where. */
export class TransferError extends Error {
  constructor(text, values = {}) {
    super(`${text} ${JSON.stringify(values)}`);
    Object.assign(this, { text, values });
  }
}

/** The conversations of a file, each with its `messages`, without anything that is not known. Throws a `TransferError`. */
export function importText(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new TransferError("importNoJson", { message: error.message });
  }
  if (file?.format !== FORMAT) throw new TransferError("importNoExport");
  if (file.version !== VERSION) throw new TransferError("importVersion", { version: String(file.version), known: VERSION });
  if (!Array.isArray(file.conversations)) wrong("conversations");
  const ids = new Set();
  return file.conversations.map((value, number) => {
    const conversation = readConversation(value, `conversations[${number}]`);
    if (ids.has(conversation.id)) wrong(`conversations[${number}].id`);
    ids.add(conversation.id);
    return conversation;
  });
}

function readConversation(value, place) {
  const conversation = {
    id: name(value?.id, `${place}.id`),
    title: string(value.title, `${place}.title`),
    titled: value.titled === true,
    created: time(value.created, `${place}.created`),
    updated: time(value.updated, `${place}.updated`),
    settings: readSettings(value.settings),
    chosen: {},
  };
  if (!Array.isArray(value.messages)) wrong(`${place}.messages`);
  const byId = new Map();
  conversation.messages = value.messages.map((message, number) => {
    const read = readMessage(message, conversation.id, `${place}.messages[${number}]`);
    if (byId.has(read.id)) wrong(`${place}.messages[${number}].id`);
    byId.set(read.id, read);
    return read;
  });
  conversation.messages.forEach((message, number) => {
    if (message.parent === null) return;
    // A parent comes before its children, so that nothing is its own ancestor.
    if (!(byId.get(message.parent)?.order < message.order)) wrong(`${place}.messages[${number}].parent`);
  });
  for (const [parent, child] of Object.entries(value.chosen ?? {})) {
    if (byId.get(child) !== undefined && (byId.get(child).parent ?? "") === parent) conversation.chosen[parent] = child;
  }
  return conversation;
}

function readMessage(value, conversation, place) {
  const message = {
    id: name(value?.id, `${place}.id`),
    conversation,
    parent: value.parent === null ? null : name(value.parent, `${place}.parent`),
    order: time(value.order, `${place}.order`),
    created: time(value.created, `${place}.created`),
    role: value.role,
    content: string(value.content, `${place}.content`),
  };
  if (message.role === "assistant") return { ...message, ...readAnswer(value, place) };
  if (message.role === "tool") {
    message.tool_call_id = string(value.tool_call_id, `${place}.tool_call_id`);
    message.name = string(value.name, `${place}.name`);
  } else if (message.role !== "user") wrong(`${place}.role`);
  return message;
}

function readAnswer(value, place) {
  if (!Array.isArray(value.tool_calls)) wrong(`${place}.tool_calls`);
  return {
    reasoning: string(value.reasoning, `${place}.reasoning`),
    tool_calls: value.tool_calls.map((call, number) => ({
      id: string(call?.id, `${place}.tool_calls[${number}].id`),
      name: string(call.name, `${place}.tool_calls[${number}].name`),
      arguments: string(call.arguments, `${place}.tool_calls[${number}].arguments`),
    })),
    model: string(value.model, `${place}.model`),
    format: value.format === "json" ? "json" : "text",
    status: STATUSES.includes(value.status) ? value.status : "lost",
    error: typeof value.error === "string" ? value.error : null,
    finish_reason: typeof value.finish_reason === "string" ? value.finish_reason : null,
    request: typeof value.request === "string" ? value.request : null,
    usage: readUsage(value.usage),
    timings: numbers(value.timings, ["time_to_first_token_ms", "decode_ms", "total_ms", "cached_tokens"]),
    clock: numbers(value.clock, ["first", "last", "pieces"]),
    stream: null,
  };
}

function readUsage(value) {
  const usage = numbers(value, ["prompt_tokens", "completion_tokens"]);
  if (usage !== null) usage.prompt_tokens_details = numbers(value.prompt_tokens_details, ["cached_tokens"]);
  return usage;
}

/** An object of finite numbers, null where one is none; null for what is no object. */
function numbers(value, names) {
  if (typeof value !== "object" || value === null) return null;
  return Object.fromEntries(names.map((key) => [key, Number.isFinite(value[key]) ? value[key] : null]));
}

function name(value, place) {
  if (typeof value !== "string" || !/^[\w-]{1,64}$/.test(value)) wrong(place);
  return value;
}

function string(value, place) {
  if (typeof value !== "string") wrong(place);
  return value;
}

function time(value, place) {
  if (!Number.isSafeInteger(value) || value < 0) wrong(place);
  return value;
}

function wrong(place) {
  throw new TransferError("importBadValue", { place });
}
