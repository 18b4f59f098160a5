// Asks for the API key, on any page.

import { key } from "./api.js";
import { append } from "./dom.js";
import { say } from "./strings.js";

/** The answer that is being waited for, whoever asks. */
let asking = null;

/** Resolves once the reader has answered; a key that was given is kept for the tab. */
export function askForKey() {
  asking ??= ask().finally(() => { asking = null; });
  return asking;
}

function ask() {
  const dialog = append(document.body, "dialog");
  dialog.id = "key-dialog";
  dialog.setAttribute("aria-labelledby", "key-title");
  const form = append(dialog, "form");
  form.method = "dialog";
  append(form, "h2", "", say("keyTitle")).id = "key-title";
  append(form, "p", "hint", say(key.given() ? "keyWrong" : "keyKept"));
  const label = append(form, "label", "unseen", say("key"));
  label.htmlFor = "key";
  const input = append(form, "input");
  Object.assign(input, { id: "key", type: "password", autocomplete: "off", spellcheck: false, required: true });
  input.placeholder = say("key");
  const submit = append(append(form, "div", "actions"), "button", "primary", say("useKey"));
  submit.type = "submit";
  dialog.showModal();
  return new Promise((resume) => {
    dialog.addEventListener("close", () => {
      const value = input.value.trim();
      if (value) key.keep(value);
      dialog.remove();
      resume();
    }, { once: true });
  });
}
