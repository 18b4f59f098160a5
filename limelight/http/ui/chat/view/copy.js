// Text to the clipboard, and the button for it.

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
    button.textContent = say((await copy(text())) ? "copied" : "copyFailed");
    setTimeout(() => { button.textContent = say(name); }, SAID_MILLISECONDS);
  });
  return button;
}

/** Returns whether it worked. Pages that came over plain HTTP have no clipboard but by a selection. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text) {
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.className = "unseen";
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return copied;
}
