// The chat page: keeps the conversation, streams answers, and puts everything on the page as text, never as HTML.

import { request, ServerError } from "./api.js";
import { append, element } from "./dom.js";
import { askForKey } from "./key-dialog.js";
import { events } from "./sse.js";

const MAX_ANSWER_TOKENS = 1024; // a model that never ends would go on to the end of its context
const RETRY_MILLISECONDS = 1500;

const conversation = element("conversation");
const prompt = element("prompt");
const scroller = element("scroller");

/** What the server is told next time: alternating user and assistant messages. */
let messages = [];
let model = null;
/** Aborts the answer in progress; null when there is none. */
let running = null;

// ---- talking to the server

async function loadModel() {
  for (;;) {
    try {
      const list = await (await request("v1/models")).json();
      model = list.data[0].id;
      element("model").textContent = model;
      document.title = `${model} · Limelight`;
      notify(null);
      update();
      return;
    } catch (error) {
      if (error.status === 401) {
        await askForKey();
      } else {
        notify(error.status === 503 ? "The model is loading…" : `Cannot reach the model: ${error.message}`);
        await new Promise((resume) => setTimeout(resume, RETRY_MILLISECONDS));
      }
    }
  }
}

// ---- one answer

/** Sends the conversation and shows the answer as it comes. */
async function ask(text) {
  const thread = messages;
  thread.push({ role: "user", content: text });
  const question = show("user");
  question.textContent = text;
  const view = new AnswerView();
  running = new AbortController();
  update();
  try {
    await stream(thread, view, running.signal);
  } catch (error) {
    if (error.name === "AbortError") view.note = "stopped";
    else view.fail(error.message);
    if (error.status === 401) retryWithKey();
  }
  running = null;
  view.finish();
  if (view.text) thread.push({ role: "assistant", content: view.text });
  else thread.pop();
  if (!view.text && thread === messages && prompt.value === "") prompt.value = text;
  update();
  prompt.focus();
}

async function stream(thread, view, signal) {
  const system = element("system").value.trim();
  const response = await request("v1/chat/completions", {
    method: "POST",
    signal,
    body: JSON.stringify({
      model,
      messages: system ? [{ role: "system", content: system }, ...thread] : thread,
      max_completion_tokens: MAX_ANSWER_TOKENS,
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  let whole = false;
  for await (const { data } of events(response.body)) {
    whole = data === "[DONE]";
    if (whole) continue;
    const chunk = JSON.parse(data);
    view.id = chunk.id ?? view.id;
    if (chunk.error) throw new ServerError(500, chunk.error);
    if (chunk.usage) view.tokens = chunk.usage.completion_tokens;
    const choice = chunk.choices[0];
    if (choice?.delta.content) view.add(choice.delta.content);
    if (choice?.finish_reason === "length") view.note = "cut at its length limit: ask to go on";
  }
  if (!whole) throw new Error("The connection ended before the answer did.");
}

async function retryWithKey() {
  await askForKey();
  loadModel();
}

/** One answer on the page: its text, and how fast it came. */
class AnswerView {
  text = "";
  tokens = null;
  note = "";
  /** The request's id, once it is known. */
  id = null;
  #pieces = 0;
  #asked = performance.now();
  #first = null;
  #last = null;
  #pending = false;
  #root = show("answer waiting");
  #body = append(this.#root, "div", "text");
  #figures = append(this.#root, "p", "figures");

  add(piece) {
    this.text += piece;
    this.#pieces += 1;
    this.#last = performance.now();
    this.#first ??= this.#last;
    if (this.#pending) return;
    this.#pending = true;
    requestAnimationFrame(() => this.#draw());
  }

  fail(message) {
    append(this.#root, "p", "error").textContent = message;
  }

  finish() {
    this.#draw();
    this.#root.className = "answer";
    this.#figures.textContent = this.#describe();
    if (this.id !== null) this.#link();
    if (!this.#figures.textContent) this.#figures.remove();
  }

  /** To the request's phases, on the other page. */
  #link() {
    const link = document.createElement("a");
    link.href = `ui/requests#${encodeURIComponent(this.id)}`;
    link.textContent = "where the time went";
    this.#figures.append(this.#figures.textContent ? " · " : "", link);
  }

  #draw() {
    this.#pending = false;
    following(() => this.#body.replaceChildren(...blocks(this.text)));
  }

  #describe() {
    if (this.#first === null) return "";
    const count = this.tokens ?? this.#pieces;
    const seconds = (this.#last - this.#first) / 1000;
    const parts = [];
    if (count > 1 && seconds > 0) parts.push(`${((count - 1) / seconds).toFixed(1)} tokens/s`);
    parts.push(`first token after ${duration(this.#first - this.#asked)}`);
    parts.push(`${this.tokens === null ? "about " : ""}${count} tokens`);
    if (this.note) parts.push(this.note);
    return parts.join(" · ");
  }
}

const duration = (milliseconds) =>
  milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;

// ---- text on the page

/** Paragraphs, headings, bold text and code as elements. Everything goes through textContent, so markup in an answer stays text. */
function blocks(text) {
  return text.split(/^```/m).flatMap((part, number) => {
    if (number % 2 === 1) {
      const pre = document.createElement("pre");
      append(pre, "code").textContent = part.replace(/^[^\n]*\n?/, "").replace(/\n$/, "");
      return [pre];
    }
    const trimmed = part.replace(/^\n+|\s+$/g, "");
    return trimmed ? trimmed.split(/\n{2,}/).map(paragraph) : [];
  });
}

function paragraph(text) {
  const element = document.createElement("p");
  text.split(/(`[^`\n]+`|\*\*(?! )[^*\n]+\*\*|^#{1,6} .+$)/m).forEach((part, number) => {
    if (number % 2 === 0) element.append(part);
    else if (part[0] === "`") append(element, "code").textContent = part.slice(1, -1);
    else append(element, "strong").textContent = part.replace(/^(\*\*|#+ )|\*\*$/g, "");
  });
  return element;
}

function show(className) {
  element("welcome").hidden = true;
  const shown = append(conversation, "div", className);
  scroller.scrollTop = scroller.scrollHeight;
  return shown;
}

/** Keeps the end in view while text grows, unless the reader has scrolled up. */
function following(change) {
  const follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
  change();
  if (follows) scroller.scrollTop = scroller.scrollHeight;
}

function notify(text) {
  element("notice").hidden = text === null;
  element("notice").textContent = text ?? "";
}

function update() {
  element("send").disabled = model === null || prompt.value.trim() === "";
  element("send").hidden = running !== null;
  element("stop").hidden = running === null;
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

// ---- events

element("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (!text || model === null || running !== null) return;
  prompt.value = "";
  ask(text);
});

prompt.addEventListener("input", update);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  element("composer").requestSubmit();
});

element("stop").addEventListener("click", () => running?.abort());

element("new-chat").addEventListener("click", () => {
  running?.abort();
  messages = [];
  conversation.replaceChildren();
  element("welcome").hidden = false;
  prompt.focus();
});

element("toggle-system").addEventListener("click", () => {
  const panel = element("system-panel");
  panel.hidden = !panel.hidden;
  element("toggle-system").setAttribute("aria-expanded", String(!panel.hidden));
  if (!panel.hidden) element("system").focus();
});

loadModel();
