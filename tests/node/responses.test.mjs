// The Responses API through the official openai client for Node, on the real server with the real default model.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { startServer } from "./server.mjs";

const QUESTION = "Name the capital of France.";
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

test("a response answers, and a stream says the same in official events", async () => {
  const request = { model, input: QUESTION, temperature: 0, max_output_tokens: 20 };
  const whole = await client.responses.create(request);
  assert.match(whole.output_text, /Paris/);
  assert.equal(whole.status, "completed");
  const events = [];
  for await (const event of await client.responses.create({ ...request, stream: true })) events.push(event);
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, number) => number));
  assert.equal(events[0].type, "response.created");
  const last = events.at(-1);
  assert.equal(last.type, "response.completed");
  assert.equal(last.response.output[0].content[0].text, whole.output_text);
  assert.equal(last.response.usage.output_tokens, whole.usage.output_tokens);
});

test("the client's stream helper assembles the response", async () => {
  const stream = client.responses.stream({ model, input: QUESTION, temperature: 0, max_output_tokens: 20 });
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  const final = await stream.finalResponse();
  assert.equal(final.output_text, text);
  assert.match(text, /Paris/);
});

test("a stored response is continued, fetched and deleted", async () => {
  const first = await client.responses.create({ model, input: "My name is Ada.", temperature: 0, max_output_tokens: 8 });
  const next = await client.responses.create({
    model, input: "What is my name?", previous_response_id: first.id, temperature: 0, max_output_tokens: 8,
  });
  assert.ok(next.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens);
  assert.deepEqual((await client.responses.retrieve(first.id)).output, first.output);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("a response in the background is followed to its end", async () => {
  const queued = await client.responses.create({
    model, input: QUESTION, temperature: 0, max_output_tokens: 20, background: true,
  });
  assert.equal(queued.status, "queued");
  let last;
  for await (const event of await client.responses.retrieve(queued.id, { stream: true })) last = event;
  assert.equal(last.type, "response.completed");
  assert.match(last.response.output[0].content[0].text, /Paris/);
});
