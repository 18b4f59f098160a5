// Markdown of an answer as elements, whole or while it is still being written.
//
// CommonMark 0.31 with GitHub's tables, task lists, strikethrough and bare addresses. Different on purpose: HTML is text; an image is
// a link to it, for nothing is ever loaded; links lead to http, https and mailto only; link reference definitions are text; items of
// lists always hold paragraphs (`loose` says how far apart); formulas in $...$, $$...$$, \(...\) and \[...\] are shown unchanged, as code.
// The element around it has the class `markdown` (markdown.css).

import { BlockParser } from "./markdown-blocks.js";
import { patchChildren } from "./markdown-dom.js";
import { GrowingText, viewsOf } from "./markdown-view.js";

const LABELS = { copyLabel: "Copy", copiedLabel: "Copied", copyFailedLabel: "Could not copy", done: "done", notDone: "not done" };
const MARKERS = new Set(" \t>*+-_=#`~|:.)$\\[]");
const MAX_NUMBER = 9; // digits of the number of an item

/** `text` as a document fragment. `options` are words: copyLabel, copiedLabel, copyFailedLabel; done, notDone for tasks. */
export function renderMarkdown(text, options = {}) {
  const fragment = document.createDocumentFragment();
  new StreamingMarkdown(fragment, options).finish(text);
  return fragment;
}

/**
 * Keeps the children of an element, all of which are its own, in step with a text that grows. Elements of finished blocks stay as they
 * are, and text that grows is appended to, so that a selection survives. Until `finish`, what the text has opened and not closed yet
 * (emphasis, code, a link, a table) is shown as what it is going to be, and a line of nothing but signs waits until it is clear.
 */
export class StreamingMarkdown {
  #element;
  #labels;
  #parser = new BlockParser();
  #text = "";
  /** Where the line begins that is still being written. */
  #lineStart = 0;
  #shown = [];
  #growing = new GrowingText();

  constructor(element, options = {}) {
    this.#element = element;
    this.#labels = { ...LABELS, ...options };
  }

  /** Shows `text`, the whole text so far. It may also be another one than before, at more cost. */
  update(text) {
    this.#read(text);
    const tail = withoutReturn(text.slice(this.#lineStart));
    this.#show(this.#parser.preview(isUnclear(tail) ? null : tail));
  }

  /** Shows the text as it is now that nothing comes after it: the same as `renderMarkdown`. `text` as for `update`. */
  finish(text = this.#text) {
    this.#read(text);
    this.#show(this.#parser.whole(withoutReturn(text.slice(this.#lineStart))));
  }

  /** Gives the parser the lines that have ended. */
  #read(text) {
    if (text.slice(0, this.#text.length) !== this.#text) { // many times faster than startsWith
      this.#parser = new BlockParser();
      this.#lineStart = 0;
    }
    this.#text = text;
    const ends = /\r\n|\n|\r(?!$)/g; // a return at the end may be half of an end of line
    ends.lastIndex = this.#lineStart;
    for (let end = ends.exec(text); end !== null; end = ends.exec(text)) {
      this.#parser.push(text.slice(this.#lineStart, end.index));
      this.#lineStart = ends.lastIndex;
    }
  }

  #show(root) {
    const views = viewsOf(root.children, { labels: this.#labels, growing: this.#growing });
    patchChildren(this.#element, this.#shown, views);
    this.#shown = views;
  }
}

const withoutReturn = (line) => (line.endsWith("\r") ? line.slice(0, -1) : line);

/** Whether a line that is still being written has only signs that may mean one thing or another, such as "-" or "1.". */
function isUnclear(line) {
  let digits = 0;
  for (const letter of line) {
    if (letter >= "0" && letter <= "9") digits += 1;
    else if (!MARKERS.has(letter)) return false;
    if (digits > MAX_NUMBER) return false;
  }
  return true;
}
