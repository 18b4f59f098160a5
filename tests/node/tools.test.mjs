// Tools and answers of a given form through the official openai client for Node, with the real default model.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { startServer } from "./server.mjs";

const QUESTION = "Name the capital of France.";
const CITY = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 }, capital: { type: "boolean" } },
  required: ["city", "capital"],
  additionalProperties: false,
};
const TOOL = { type: "function", name: "find_city", description: "Finds a city.", parameters: CITY, strict: true };
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

function checkCity(text) {
  const found = JSON.parse(text);
  assert.deepEqual(Object.keys(found).sort(), ["capital", "city"]);
  assert.equal(typeof found.city, "string");
  assert.equal(typeof found.capital, "boolean");
}

test("a response has the form that a schema asks for, whole and streamed", async () => {
  const request = {
    model, input: QUESTION, temperature: 0, max_output_tokens: 200,
    text: { format: { type: "json_schema", name: "city", schema: CITY, strict: true } },
  };
  checkCity((await client.responses.create(request)).output_text);
  const parsed = await client.responses.parse(request);
  checkCity(JSON.stringify(parsed.output_parsed));
  checkCity((await client.responses.stream(request).finalResponse()).output_text);
});

test("a tool that must be called is called, and its result goes back", async () => {
  const request = {
    model, input: [{ role: "user", content: QUESTION }], tools: [TOOL], tool_choice: "required", temperature: 0,
    max_output_tokens: 200,
  };
  const whole = await client.responses.create(request);
  const call = whole.output.find((item) => item.type === "function_call");
  assert.equal(call.name, "find_city");
  checkCity(call.arguments);

  const stream = client.responses.stream(request);
  let told = "";
  stream.on("response.function_call_arguments.delta", (event) => { told += event.delta; });
  const streamed = (await stream.finalResponse()).output.find((item) => item.type === "function_call");
  assert.equal(told, streamed.arguments);
  checkCity(told);

  const answer = await client.responses.create({
    ...request,
    input: [...request.input, ...whole.output, { type: "function_call_output", call_id: call.call_id, output: "Paris" }],
    tool_choice: "none",
    max_output_tokens: 10,
  });
  assert.ok(answer.output_text.length > 0);
});

const MESSAGES = [{ role: "user", content: QUESTION }];
const CHAT_TOOL = { type: "function", function: { name: "find_city", parameters: CITY, strict: true } };

test("a chat has the form that a schema asks for, whole and streamed", async () => {
  const request = {
    model, messages: MESSAGES, temperature: 0, max_completion_tokens: 200,
    response_format: { type: "json_schema", json_schema: { name: "city", schema: CITY, strict: true } },
  };
  checkCity((await client.chat.completions.create(request)).choices[0].message.content);
  checkCity(JSON.stringify((await client.chat.completions.parse(request)).choices[0].message.parsed));
  checkCity((await client.chat.completions.stream(request).finalChatCompletion()).choices[0].message.content);
});

test("a chat calls the tool that it must call, and goes on with the result", async () => {
  const request = {
    model, messages: MESSAGES, tools: [CHAT_TOOL], tool_choice: "required", temperature: 0,
    max_completion_tokens: 200,
  };
  const whole = (await client.chat.completions.create(request)).choices[0];
  assert.equal(whole.finish_reason, "tool_calls");
  assert.equal(whole.message.tool_calls[0].function.name, "find_city");
  checkCity(whole.message.tool_calls[0].function.arguments);
  const streamed = (await client.chat.completions.stream(request).finalChatCompletion()).choices[0];
  assert.equal(streamed.finish_reason, "tool_calls");
  checkCity(streamed.message.tool_calls[0].function.arguments);
  const answer = await client.chat.completions.create({
    ...request,
    messages: [
      ...MESSAGES, whole.message,
      { role: "tool", tool_call_id: whole.message.tool_calls[0].id, content: "Paris" },
    ],
    tool_choice: "none",
    max_completion_tokens: 10,
  });
  assert.ok(answer.choices[0].message.content.length > 0);
});

test("the client's own loop runs a tool and ends", async () => {
  const heard = [];
  const runner = client.chat.completions.runTools({
    model, messages: MESSAGES, temperature: 0, max_completion_tokens: 200,
    tool_choice: { type: "function", function: { name: "find_city" } },
    tools: [{
      type: "function",
      function: {
        name: "find_city", description: "Finds a city.", parameters: CITY, parse: JSON.parse,
        function: (found) => { heard.push(found); return "Paris"; },
      },
    }],
  });
  await runner.done();
  assert.equal(heard.length, 1);
  checkCity(JSON.stringify(heard[0]));
});
