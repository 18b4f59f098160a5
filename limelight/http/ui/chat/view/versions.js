// Which version of a message is shown, and the arrows to the others.

import { append, setText } from "../../dom.js";
import { say } from "../../strings.js";

export class Versions {
  #root;
  #at;
  #message;
  #versions = [];

  /** `choose(message)` is told of the version that the reader wants. */
  constructor(parent, choose) {
    this.#root = append(parent, "span", "versions");
    this.#root.hidden = true;
    this.#arrow("‹", "earlier", -1, choose);
    this.#at = append(this.#root, "span");
    this.#arrow("›", "later", 1, choose);
  }

  update(message, versions) {
    this.#message = message;
    this.#versions = versions;
    this.#root.hidden = versions.length < 2;
    if (this.#root.hidden) return;
    const at = versions.indexOf(message);
    setText(this.#at, say("version", { at: at + 1, all: versions.length }));
    const [earlier, later] = this.#root.querySelectorAll("button");
    earlier.disabled = at === 0;
    later.disabled = at === versions.length - 1;
  }

  #arrow(text, name, step, choose) {
    const button = append(this.#root, "button", "quiet icon", text);
    button.type = "button";
    button.dataset.arrow = name;
    button.setAttribute("aria-label", say(name));
    button.addEventListener("click", () => choose(this.#versions[this.#versions.indexOf(this.#message) + step], name));
  }
}
