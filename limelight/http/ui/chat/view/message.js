// A message of the reader: a question, or the result of a tool call. It can be edited in its place.

import { append, setText } from "../../dom.js";
import { say } from "../../strings.js";
import { copyButton } from "./copy.js";
import { Versions } from "./versions.js";

export class MessageView {
  root = document.createElement("article");
  #message;
  #actions;
  #text;
  #tools;
  #edit;
  #versions;

  /** `actions`: `edit(message, text)` and `choose(message, arrow)`. */
  constructor({ message }, actions) {
    this.#message = message;
    this.#actions = actions;
    const tool = message.role === "tool";
    this.root.className = `message ${message.role}`;
    this.root.setAttribute("aria-label", tool ? say("toolResult", { name: message.name }) : say("you"));
    if (tool) append(this.root, "p", "label", say("toolResult", { name: message.name }));
    this.#text = append(this.root, "div", "said");
    this.#tools = append(this.root, "div", "tools");
    this.#versions = new Versions(this.#tools, actions.choose);
    this.#edit = append(this.#tools, "button", "quiet", say("edit"));
    this.#edit.type = "button";
    this.#edit.addEventListener("click", () => this.#open());
    this.#tools.append(copyButton("copy", () => this.#message.content));
  }

  /** `busy`: an answer of this conversation is in progress, and nothing can be asked. */
  update({ message, versions, busy }) {
    this.#message = message;
    setText(this.#text, message.content);
    this.#versions.update(message, versions);
    this.#edit.disabled = busy;
  }

  #open() {
    const form = document.createElement("form");
    form.className = "editor";
    const field = append(form, "textarea");
    field.value = this.#message.content;
    field.rows = Math.min(12, field.value.split("\n").length + 1);
    field.setAttribute("aria-label", say("editLabel"));
    const actions = append(form, "div", "actions");
    const cancel = append(actions, "button", "quiet", say("cancel"));
    cancel.type = "button";
    append(actions, "button", "primary", say("saveEdit"));
    const close = () => {
      form.replaceWith(this.#text, this.#tools);
      this.#edit.focus();
    };
    cancel.addEventListener("click", close);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (text === "") return;
      close();
      this.#actions.edit(this.#message, text);
    });
    form.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey && event.target === field) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.#tools.remove();
    this.#text.replaceWith(form);
    field.focus();
  }
}
