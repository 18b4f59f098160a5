// What the chat page makes of messages, settings, chunks and files, without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import "./page-modules.mjs";

const UI = "../../limelight/http/ui/chat";
const { addChunk, prettyJson, speed } = await import(`${UI}/answer.js`);
const { chatBody } = await import(`${UI}/chat-request.js`);
const { answerMessage, newConversation, titleOf, toolMessage, userMessage } = await import(`${UI}/messages.js`);
const { NO_SETTINGS, readSettings, requestFields, SettingError } = await import(`${UI}/settings.js`);
const { MemoryStore } = await import(`${UI}/store.js`);
const { exportText, importText, TransferError } = await import(`${UI}/transfer.js`);
const { openCalls, Tree } = await import(`${UI}/tree.js`);

/** An answer that is complete. */
function answer(content, fields = {}) {
  return { ...answerMessage("model", "text"), content, status: "done", ...fields };
}

/** Adds each message below the one before. */
function chain(tree, messages, parent = null) {
  let at = parent;
  for (const message of messages) {
    tree.add(message, at);
    at = message.id;
  }
  return messages;
}

const contents = (path) => path.map((message) => message.content);

test("a tree shows the newest branch, and any other that is chosen, at every fork", () => {
  const tree = new Tree([], {});
  const [question, first, more] = chain(tree, [userMessage("q"), answer("a"), userMessage("more")]);
  const [second] = chain(tree, [answer("b")], question.id);
  const [other] = chain(tree, [userMessage("other")]);
  assert.deepEqual(contents(tree.path()), ["other"]);
  tree.choose(question);
  assert.deepEqual(contents(tree.path()), ["q", "b"]);
  tree.choose(first);
  assert.deepEqual(contents(tree.path()), ["q", "a", "more"]);
  assert.deepEqual(contents(tree.pathTo(second.id)), ["q", "b"]);
  assert.deepEqual(tree.pathTo(null), []);
  assert.deepEqual(tree.versions(second), [first, second]);
  assert.deepEqual(tree.versions(other), [question, other]);
  assert.deepEqual(tree.versions(more), [more]);
});

test("a tree is the same in whatever order its messages are read", () => {
  const tree = new Tree([], {});
  const [q, a, r] = chain(tree, [userMessage("q"), answer("a"), userMessage("r")]);
  const [b] = chain(tree, [answer("b")], q.id);
  for (const order of [[q, a, b, r], [r, b, a, q], [b, q, r, a]]) {
    const read = new Tree(order, { ...tree.chosen });
    assert.deepEqual(contents(read.path()), ["q", "b"]);
    assert.deepEqual(read.versions(a), [a, b]);
    read.add(userMessage("last"), b.id);
    assert.deepEqual(contents(read.path()), ["q", "b", "last"]);
  }
});

test("calls are open until each has a result", () => {
  const calls = [{ id: "1", name: "f", arguments: "{}" }, { id: "2", name: "g", arguments: "{}" }];
  const asking = answer("", { tool_calls: calls });
  const path = [userMessage("q"), asking];
  assert.deepEqual(openCalls(path), calls);
  assert.deepEqual(openCalls([...path, toolMessage(calls[0], "x")]), [calls[1]]);
  assert.deepEqual(openCalls([...path, toolMessage(calls[0], "x"), toolMessage(calls[1], "y")]), []);
  assert.deepEqual(openCalls([...path, userMessage("never mind")]), []);
  assert.deepEqual(openCalls([path[0], { ...asking, status: "streaming" }]), []);
  assert.deepEqual(openCalls([]), []);
});

test("chunks become an answer", () => {
  const whole = answerMessage("model", "text");
  const chunks = [
    { id: "chatcmpl-1", choices: [{ delta: { role: "assistant", content: "" }, finish_reason: null }] },
    { id: "chatcmpl-1", choices: [{ delta: { reasoning: "h" } }] },
    { id: "chatcmpl-1", choices: [{ delta: { reasoning_content: "m" } }] },
    { id: "chatcmpl-1", choices: [{ delta: { content: "He" } }], usage: null },
    { id: "chatcmpl-1", choices: [{ delta: { content: "llo" } }] },
    { choices: [{ delta: { tool_calls: [{ index: 0, id: "c", type: "function", function: { name: "f", arguments: "" } }] } }] },
    { choices: [{ delta: { tool_calls: [{ index: 0, function: { arguments: '{"a":' } }] } }] },
    { choices: [{ delta: { tool_calls: [{ index: 0, function: { arguments: "1}" } }] } }] },
    { choices: [{ delta: {}, finish_reason: "tool_calls" }] },
    { choices: [], usage: { completion_tokens: 9 }, timings: { decode_ms: 80, time_to_first_token_ms: 20 } },
  ];
  const brought = chunks.map((chunk) => addChunk(whole, chunk));
  assert.deepEqual(brought, [false, true, true, true, true, true, true, true, false, false]);
  assert.equal(whole.request, "chatcmpl-1");
  assert.deepEqual([whole.reasoning, whole.content], ["hm", "Hello"]);
  assert.deepEqual(whole.tool_calls, [{ id: "c", name: "f", arguments: '{"a":1}' }]);
  assert.equal(whole.finish_reason, "tool_calls");
  assert.deepEqual(speed(whole), { source: "server", first: 0.02, rate: 100 });
});

test("the browser's clock is asked only where the server tells no timings", () => {
  const clock = { first: 0.5, last: 2.5, pieces: 5 };
  assert.deepEqual(speed(answer("", { clock })), { source: "browser", first: 0.5, rate: 2 });
  assert.deepEqual(speed(answer("")), { source: null, first: null, rate: null });
  const timings = { time_to_first_token_ms: null, decode_ms: null };
  assert.deepEqual(speed(answer("", { clock, timings })), { source: "server", first: null, rate: null });
});

test("JSON is made pretty, and what is none stays as it is", () => {
  assert.deepEqual(prettyJson('{"a":[1]}'), { text: '{\n  "a": [\n    1\n  ]\n}', error: null });
  const { text, error } = prettyJson('{"a":');
  assert.equal(text, '{"a":');
  assert.ok(error.length > 0);
});

test("what is sent leaves out answers that said nothing, and joins the questions around them", () => {
  const call = { id: "c", name: "f", arguments: "{}" };
  const path = [
    userMessage("one"), answer("", { status: "failed" }), userMessage("two"),
    answer("", { reasoning: "hm", tool_calls: [call] }), toolMessage(call, "3"), answer("three"), userMessage("four"),
  ];
  const body = chatBody(path, { ...NO_SETTINGS, system: " Be brief. " }, "model", null);
  assert.deepEqual(body.messages, [
    { role: "system", content: "Be brief." },
    { role: "user", content: "one\n\ntwo" },
    {
      role: "assistant", content: null, reasoning: "hm",
      tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }],
    },
    { role: "tool", tool_call_id: "c", content: "3" },
    { role: "assistant", content: "three" },
    { role: "user", content: "four" },
  ]);
  assert.equal(path[0].content, "one", "messages are not changed");
  assert.equal(body.max_completion_tokens, 1024);
});

test("settings that make no sense are refused by name", () => {
  const cases = [
    ["temperature", "x"], ["temperature", "NaN"], ["temperature", "Infinity"], ["temperature", "2.1"], ["top_p", "-0.1"],
    ["top_k", "1.5"], ["max_completion_tokens", "0"], ["seed", "9007199254740993"], ["tools", "{}"], ["tools", "["],
    ["tools", '[{"name": "f"}]'], ["schema", "[]"], ["schema", "null"], ["schema", "{"],
  ];
  for (const [name, text] of cases) {
    assert.throws(
      () => requestFields({ ...NO_SETTINGS, [name]: text }, null),
      (error) => error instanceof SettingError && error.setting === name,
      `${name}: ${text}`,
    );
  }
  assert.deepEqual(requestFields({ ...NO_SETTINGS, temperature: " 0 ", stop: "a\\n\\\\n\n\nb" }, null), {
    max_completion_tokens: 1024, temperature: 0, stop: ["a\n\\n", "b"],
  });
});

test("settings are read out of anything", () => {
  for (const value of [null, undefined, 7, "x", [], { temperature: 1, other: "x" }]) {
    assert.deepEqual(readSettings(value), NO_SETTINGS);
  }
  assert.equal(readSettings({ temperature: "1" }).temperature, "1");
});

test("titles are the first line, cut between characters", () => {
  assert.equal(titleOf("  hello   there\nmore"), "hello there");
  assert.equal(titleOf("😀".repeat(61)), `${"😀".repeat(59)}…`);
});

/** A conversation with every kind of message, as the store has it. */
function conversation() {
  const record = newConversation({ ...NO_SETTINGS, temperature: "1" });
  record.title = "title";
  const tree = new Tree([], record.chosen);
  const call = { id: "c", name: "f", arguments: "{}" };
  const messages = chain(tree, [
    userMessage("q"),
    answer("", { tool_calls: [call], reasoning: "hm", usage: { prompt_tokens: 3, completion_tokens: 4, prompt_tokens_details: { cached_tokens: 1 } } }),
    toolMessage(call, "result"),
    answer("done", { timings: { time_to_first_token_ms: 1, decode_ms: 2, total_ms: 3, cached_tokens: 0 } }),
  ]);
  messages.push(...chain(tree, [answer("other")], messages[2].id));
  for (const message of messages) message.conversation = record.id;
  return { ...record, messages };
}

test("an export is imported as it was", () => {
  const kept = [conversation(), conversation()];
  assert.deepEqual(importText(exportText(kept)), kept);
  assert.deepEqual(importText(exportText([])), []);
});

test("an answer in progress is exported without its stream, and lost where it is imported", () => {
  const kept = conversation();
  Object.assign(kept.messages[4], { status: "streaming", stream: { id: "secret", last: null } });
  const text = exportText([kept]);
  assert.ok(!text.includes("secret"));
  assert.equal(importText(text)[0].messages[4].status, "lost");
});

test("a damaged file is refused, and what is unknown in it is left out", () => {
  const text = exportText([conversation()]);
  const damages = {
    "conversations[0].id": (file) => { file.conversations[0].id = "a/b"; },
    "conversations[0].title": (file) => { file.conversations[0].title = 7; },
    "conversations[0].updated": (file) => { file.conversations[0].updated = "now"; },
    "conversations[0].messages": (file) => { file.conversations[0].messages = {}; },
    "conversations[0].messages[0].role": (file) => { file.conversations[0].messages[0].role = "system"; },
    "conversations[0].messages[0].content": (file) => { file.conversations[0].messages[0].content = { html: "x" }; },
    "conversations[0].messages[1].parent": (file) => { file.conversations[0].messages[1].parent = "nobody"; },
    "conversations[0].messages[1].tool_calls": (file) => { delete file.conversations[0].messages[1].tool_calls; },
    "conversations[0].messages[2].id": (file) => { file.conversations[0].messages[2].id = file.conversations[0].messages[1].id; },
    "conversations[1].id": (file) => { file.conversations.push(file.conversations[0]); },
    conversations: (file) => { file.conversations = null; },
  };
  for (const [place, damage] of Object.entries(damages)) {
    const file = JSON.parse(text);
    damage(file);
    assert.throws(
      () => importText(JSON.stringify(file)),
      (error) => error instanceof TransferError && error.values.place === place,
      place,
    );
  }
  const file = JSON.parse(text);
  const [first] = file.conversations;
  [first.messages[1].parent, first.messages[3].parent] = [first.messages[3].id, first.messages[1].id];
  assert.throws(() => importText(JSON.stringify(file)), TransferError, "a circle");
  const more = JSON.parse(text);
  more.conversations[0].evil = true;
  more.conversations[0].chosen.nobody = "x";
  more.conversations[0].messages[0].evil = "<b>";
  assert.deepEqual(importText(JSON.stringify(more)), importText(text));
});

test("the store in memory gives back copies of what it was given", async () => {
  const store = new MemoryStore();
  const { messages, ...record } = conversation();
  await store.put({ conversations: [record], messages });
  record.title = "changed";
  assert.equal((await store.conversation(record.id)).title, "title");
  assert.deepEqual(new Set((await store.messages(record.id)).map((message) => message.id)), new Set(messages.map(({ id }) => id)));
  await store.remove(record.id);
  assert.deepEqual([await store.conversations(), await store.messages(record.id)], [[], []]);
});
