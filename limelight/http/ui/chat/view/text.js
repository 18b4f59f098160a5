// The text of an answer as elements. Everything goes through `textContent`, so markup in an answer stays text.

import { append } from "../../dom.js";
import { copyButton } from "./copy.js";

/** Draws a text that grows. */
export class AnswerText {
  #root;
  #text = "";

  constructor(root) {
    this.#root = root;
  }

  update(text) {
    if (text === this.#text) return;
    this.#text = text;
    this.#root.replaceChildren(...blocks(text));
  }
}

/** Paragraphs, headings, bold text and code. */
function blocks(text) {
  return text.split(/^```/m).flatMap((part, number) => {
    if (number % 2 === 1) return [codeBlock(part.replace(/^[^\n]*\n?/, "").replace(/\n$/, ""))];
    const trimmed = part.replace(/^\n+|\s+$/g, "");
    return trimmed ? trimmed.split(/\n{2,}/).map(paragraph) : [];
  });
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

function paragraph(text) {
  const element = document.createElement("p");
  text.split(/(`[^`\n]+`|\*\*(?! )[^*\n]+\*\*|^#{1,6} .+$)/m).forEach((part, number) => {
    if (number % 2 === 0) element.append(part);
    else if (part[0] === "`") append(element, "code", "", part.slice(1, -1));
    else append(element, "strong", "", part.replace(/^(\*\*|#+ )|\*\*$/g, ""));
  });
  return element;
}
