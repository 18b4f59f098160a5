// Where the reader writes: Enter sends, Shift + Enter starts a new line, and the field grows with the text.

import { element } from "../../dom.js";

/** Whether an input method takes the key. Safari has ended the composition before its last key, which is number 229. */
const isComposing = (event) => event.isComposing || event.keyCode === 229;

export class Composer {
  #field = element("prompt");
  #ready = false;
  #busy = false;

  /** `actions`: `send(text)`, which returns whether the text was taken, and `stop()`. */
  constructor(actions) {
    element("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.#field.value.trim();
      if (text === "" || !this.#ready || this.#busy || !actions.send(text)) return;
      this.#field.value = "";
      this.draw();
    });
    this.#field.addEventListener("input", () => this.draw());
    this.#field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return;
      event.preventDefault();
      element("composer").requestSubmit();
    });
    element("stop").addEventListener("click", () => {
      actions.stop();
      this.focus();
    });
  }

  /** `ready`: a model can be asked; `busy`: an answer is in progress. */
  update(ready, busy) {
    this.#ready = ready;
    this.#busy = busy;
    this.draw();
  }

  draw() {
    element("send").disabled = !this.#ready || this.#field.value.trim() === "";
    element("send").hidden = this.#busy;
    element("stop").hidden = !this.#busy;
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
  }

  focus() {
    this.#field.focus();
  }
}
