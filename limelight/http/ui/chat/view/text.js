// The text of an answer as elements: Markdown, rendered while it grows.

import { append } from "../../dom.js";
import { StreamingMarkdown } from "../../markdown.js";
import { say } from "../../strings.js";
import { copyButton } from "./copy.js";

/** Draws a text that grows. */
export class AnswerText {
  #markdown;
  #text = "";
  #complete = true;

  constructor(root) {
    root.classList.add("markdown");
    const words = {
      copyLabel: say("copyCode"), copiedLabel: say("copied"), copyFailedLabel: say("copyFailed"),
      done: say("taskDone"), notDone: say("taskNotDone"),
    };
    this.#markdown = new StreamingMarkdown(root, words);
  }

  /** `complete`: nothing comes after it. */
  update(text, complete) {
    if (text === this.#text && complete === this.#complete) return;
    this.#text = text;
    this.#complete = complete;
    if (complete) this.#markdown.finish(text);
    else this.#markdown.update(text);
  }
}

/** Code that can be copied. */
export function codeBlock(text) {
  const block = document.createElement("div");
  block.className = "code";
  const code = append(append(block, "pre"), "code", "", text);
  code.parentElement.tabIndex = 0;
  block.append(copyButton("copyCode", () => code.textContent));
  return block;
}
