// The settings of a conversation, kept as the reader typed them, and the request fields that they mean.

/** What is a number: the name is that of the request field, the bounds are the server's. An empty one is left out. */
export const NUMBERS = [
  { name: "temperature", least: 0, most: 2 },
  { name: "top_p", least: 0, most: 1 },
  { name: "top_k", whole: true, least: -1 },
  { name: "min_p", least: 0, most: 1 },
  { name: "max_completion_tokens", whole: true, least: 1 },
  { name: "presence_penalty", least: -2, most: 2 },
  { name: "frequency_penalty", least: -2, most: 2 },
  { name: "repetition_penalty", least: 0 },
  { name: "seed", whole: true },
];

/** What a reset empties. */
export const SAMPLING = [...NUMBERS.map((field) => field.name), "stop", "reasoning"];

const NAMES = [...SAMPLING, "model", "system", "tools", "tool_choice", "schema"];

export const NO_SETTINGS = Object.freeze(Object.fromEntries(NAMES.map((name) => [name, ""])));

const MAX_ANSWER_TOKENS = 1024; // a model that never ends would go on to the end of its context
export const DEFAULTS = { max_completion_tokens: MAX_ANSWER_TOKENS };

/** A setting that cannot be sent: its name, and the text that says why. */
export class SettingError extends Error {
  constructor(setting, text, values = {}) {
    super(`${setting}: ${text}`);
    Object.assign(this, { setting, text, values });
  }
}

/** Settings out of anything: every known one as a string, and no other. */
export function readSettings(value) {
  const settings = { ...NO_SETTINGS };
  for (const name of NAMES) {
    if (typeof value?.[name] === "string") settings[name] = value[name];
  }
  return settings;
}

/**
 * The fields of a chat request. `reasoningSwitch` is the template's variable that turns reasoning on and off, or null.
 * Throws a `SettingError` for the first one that makes no sense.
 */
export function requestFields(settings, reasoningSwitch) {
  const fields = { ...DEFAULTS };
  for (const field of NUMBERS) {
    if (settings[field.name].trim() !== "") fields[field.name] = readNumber(field, settings[field.name]);
  }
  const stop = settings.stop.split("\n").filter((line) => line !== "").map(unescape);
  if (stop.length > 0) fields.stop = stop;
  if (settings.reasoning !== "" && reasoningSwitch !== null) {
    fields.chat_template_kwargs = { [reasoningSwitch]: settings.reasoning === "on" };
  }
  const tools = readTools(settings.tools);
  if (tools.length > 0) {
    fields.tools = tools;
    if (settings.tool_choice !== "") fields.tool_choice = settings.tool_choice;
  }
  const schema = readSchema(settings.schema);
  if (schema !== null) {
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  }
  return fields;
}

function readNumber({ name, whole = false, least = -Infinity, most = Infinity }, text) {
  const value = Number(text);
  if (!Number.isFinite(value)) throw new SettingError(name, "badNumber");
  if (whole && !Number.isSafeInteger(value)) throw new SettingError(name, "badInteger");
  if (value < least) throw new SettingError(name, "tooSmall", { least });
  if (value > most) throw new SettingError(name, "tooLarge", { most });
  return value;
}

/** `\n` and `\t` stand for what cannot be typed into a line, `\\` for a backslash. */
function unescape(line) {
  return line.replace(/\\([nt\\])/g, (_, letter) => ({ n: "\n", t: "\t", "\\": "\\" })[letter]);
}

function readTools(text) {
  if (text.trim() === "") return [];
  const tools = readJson("tools", text);
  const named = (tool) => tool?.type === "function" && typeof tool.function?.name === "string";
  if (!Array.isArray(tools) || !tools.every(named)) throw new SettingError("tools", "badTools");
  return tools;
}

function readSchema(text) {
  if (text.trim() === "") return null;
  const schema = readJson("schema", text);
  if (typeof schema !== "object" || schema === null || Array.isArray(schema)) {
    throw new SettingError("schema", "badSchema");
  }
  return schema;
}

function readJson(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingError(name, "badJson", { message: error.message });
  }
}
