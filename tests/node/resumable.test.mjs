// Streams that can be resumed, with keep-alives between their frames, are read by the official client as any other.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { startServer } from "./server.mjs";

const QUESTION = "Name the capital of France.";
const RESUMABLE = { headers: { "x-limelight-resumable": "1" } };
let server;
let client;
let model;

before(async () => {
  server = await startServer("--keep-alive", "0.005", "--header-wait", "0");
  client = new OpenAI({ baseURL: `${server.address}/v1`, apiKey: "unused", maxRetries: 0 });
  model = (await client.models.list()).data[0].id;
}, { timeout: 120_000 });

after(async () => {
  assert.equal(await server.stop(), 0, "SIGTERM ends the server cleanly");
});

test("a chat", async () => {
  const stream = client.chat.completions.stream({
    model, messages: [{ role: "user", content: QUESTION }], temperature: 0, max_completion_tokens: 20,
    stream_options: { include_usage: true },
  }, RESUMABLE);
  let text = "";
  stream.on("content", (piece) => { text += piece; });
  const final = await stream.finalChatCompletion();
  assert.equal(text, final.choices[0].message.content);
  assert.match(text, /Paris/);
  assert.ok((await stream.totalUsage()).completion_tokens > 0);
});

test("a completion", async () => {
  const request = { model, prompt: "One, two, three,", temperature: 0, max_tokens: 8 };
  const whole = await client.completions.create(request);
  let text = "";
  for await (const frame of await client.completions.create({ ...request, stream: true }, RESUMABLE)) {
    text += frame.choices[0]?.text ?? "";
  }
  assert.equal(text, whole.choices[0].text);
});

test("a response", async () => {
  const stream = client.responses.stream({ model, input: QUESTION, temperature: 0, max_output_tokens: 20 }, RESUMABLE);
  const pieces = [];
  const names = [];
  for await (const event of stream) {
    names.push(event.type);
    if (event.type === "response.output_text.delta") pieces.push(event.delta);
  }
  assert.equal(pieces.join(""), (await stream.finalResponse()).output_text);
  assert.match(pieces.join(""), /Paris/);
  assert.deepEqual([names[0], names.at(-1)], ["response.created", "response.completed"]);
});
