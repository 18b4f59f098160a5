// The form of the page, over client.js.

import { chat, firstModel } from "./client.js";

const form = document.querySelector("form");
const { stop } = form.elements;
const status = document.querySelector("#status");
const answer = document.querySelector("#answer");
let running = null;

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  running?.abort();
  const mine = (running = new AbortController());
  const { address, key, question } = Object.fromEntries(new FormData(form));
  answer.textContent = "";
  status.textContent = "…";
  stop.disabled = false;
  let breaks = 0;
  try {
    const body = { model: await firstModel(address, key), messages: [{ role: "user", content: question }] };
    const onReconnect = () => (status.textContent = `connection lost ${(breaks += 1)} times`);
    for await (const frame of chat(address, key, body, { signal: mine.signal, onReconnect })) {
      if (mine.signal.aborted) break;
      for (const choice of frame.choices) answer.textContent += choice.delta.content ?? "";
    }
    status.textContent = `done, with ${breaks} breaks`;
  } catch (error) {
    status.textContent = mine.signal.aborted ? "stopped" : error.message;
  }
  if (running === mine) stop.disabled = true;
});

stop.addEventListener("click", () => running?.abort());
