// The button that copies a text.

import { copyText } from "../../clipboard.js";
import { say } from "../../strings.js";

const SAID_MILLISECONDS = 2000;

/** A button that copies what `text()` gives, and says so for a moment; `name` is the text on it. */
export function copyButton(name, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet copy";
  button.textContent = say(name);
  button.setAttribute("aria-live", "polite");
  button.addEventListener("click", async () => {
    button.textContent = say((await copyText(text())) ? "copied" : "copyFailed");
    setTimeout(() => { button.textContent = say(name); }, SAID_MILLISECONDS);
  });
  return button;
}
