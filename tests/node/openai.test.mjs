// The official openai client for Node against the real server with the real default model.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { startServer } from "./server.mjs";

const QUESTION = [{ role: "user", content: "Name the capital of France." }];
let server;
let client;
let model;

before(async () => {
  server = await startServer();
  client = new OpenAI({ baseURL: `${server.address}/v1`, apiKey: "unused", maxRetries: 0 });
  model = (await client.models.list()).data[0].id;
}, { timeout: 120_000 });

after(async () => {
  assert.equal(await server.stop(), 0, "SIGTERM ends the server cleanly");
});

test("a chat completion answers, with its usage", async () => {
  const answer = await client.chat.completions.create({
    model, messages: QUESTION, temperature: 0, max_completion_tokens: 20,
  });
  assert.match(answer.choices[0].message.content, /Paris/);
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

test("a streamed chat completion says the same, in pieces", async () => {
  const request = { model, messages: QUESTION, temperature: 0, max_completion_tokens: 20 };
  const whole = await client.chat.completions.create(request);
  const stream = await client.chat.completions.create({
    ...request, stream: true, stream_options: { include_usage: true },
  });
  let text = "";
  let pieces = 0;
  let reason = null;
  let usage = null;
  for await (const frame of stream) {
    const piece = frame.choices[0]?.delta?.content;
    if (piece) {
      text += piece;
      pieces += 1;
    }
    reason = frame.choices[0]?.finish_reason ?? reason;
    usage = frame.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.ok(pieces > 1, "more than one piece");
  assert.equal(reason, "stop");
  assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the client's stream helper assembles the message", async () => {
  const runner = client.chat.completions.stream({
    model, messages: QUESTION, temperature: 0, max_completion_tokens: 20,
  });
  const final = await runner.finalChatCompletion();
  assert.match(final.choices[0].message.content, /Paris/);
});

test("a text completion, streamed and not", async () => {
  const request = { model, prompt: "One, two, three,", temperature: 0, max_tokens: 8 };
  const whole = await client.completions.create(request);
  assert.equal(whole.usage.completion_tokens, 8);
  assert.equal(whole.choices[0].finish_reason, "length");
  let text = "";
  for await (const frame of await client.completions.create({ ...request, stream: true })) {
    text += frame.choices[0]?.text ?? "";
  }
  assert.equal(text, whole.choices[0].text);
});

test("leaving a stream frees the server for the next request", async () => {
  const stream = await client.chat.completions.create({
    model, messages: QUESTION, stream: true, max_completion_tokens: 500,
  });
  for await (const frame of stream) {
    if (frame.choices[0]?.delta?.content) break;
  }
  const next = await client.completions.create({ model, prompt: "Hi", max_tokens: 1 });
  assert.equal(next.usage.completion_tokens, 1);
});

test("errors arrive as the client's own types", async () => {
  await assert.rejects(
    client.chat.completions.create({ model: "no-such-model", messages: QUESTION }),
    (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
  );
  await assert.rejects(
    client.chat.completions.create({ model, messages: QUESTION, temperature: 9 }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
  );
});

test("a model is found by its id", async () => {
  assert.equal((await client.models.retrieve(model)).id, model);
});
