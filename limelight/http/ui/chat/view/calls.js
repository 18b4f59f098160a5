// The tool calls of an answer, and the form for their results.

import { append, setText } from "../../dom.js";
import { say } from "../../strings.js";
import { prettyJson } from "../answer.js";

/** The calls: name, and arguments as JSON. */
export class CallsView {
  #root;

  constructor(root) {
    this.#root = root;
  }

  /** `running`: the last call may not be complete yet. */
  update(calls, running) {
    this.#root.hidden = calls.length === 0;
    calls.forEach((call, place) => {
      const card = this.#root.children[place] ?? this.#card();
      const { text, error } = prettyJson(call.arguments);
      setText(card.querySelector(".label"), say("calls", { name: call.name }));
      setText(card.querySelector("code"), text);
      const fault = card.querySelector(".error");
      fault.hidden = running || error === null;
      setText(fault, error === null ? "" : say("callCut", { message: error }));
    });
  }

  #card() {
    const card = append(this.#root, "div", "call");
    append(card, "p", "label");
    append(append(card, "pre"), "code");
    append(card, "p", "error");
    return card;
  }
}

/** Asks for the results of `calls` in a form; `give(calls, texts)` is told of them. */
export class ResultsForm {
  #form;
  #shown = "";
  #calls = [];

  constructor(form, give) {
    this.#form = form;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      give(this.#calls, [...form.querySelectorAll("textarea")].map((field) => field.value));
    });
  }

  /** What is typed stays as long as the calls are the same. */
  update(calls) {
    this.#form.hidden = calls.length === 0;
    const shown = calls.map((call) => call.id).join(" ");
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#calls = calls;
    this.#form.replaceChildren();
    if (calls.length === 0) return;
    append(this.#form, "h2", "", say("giveResults"));
    calls.forEach((call, place) => {
      const label = append(this.#form, "label", "", say("resultOf", { name: call.name }));
      const field = append(this.#form, "textarea");
      field.id = label.htmlFor = `result-${place}`;
      field.rows = 2;
      field.spellcheck = false;
    });
    append(append(this.#form, "div", "actions"), "button", "primary", say("sendResults"));
  }
}
