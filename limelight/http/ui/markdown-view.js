// What Markdown's blocks look like: descriptions of elements, `{ tag, attributes, children, onClick }` or strings, for markdown-dom.js.

import { copyCode } from "./markdown-copy.js";
import { parseInline } from "./markdown-inline.js";

const SETTLE_AT = 500; // characters
const SETTLE_ANYWAY_AT = 8000; // however open: until the text is whole, what it has opened before stays text
const UNSETTLED = /[*~`[\\$<]|\b_/; // signs that what follows may still pair with
const TASK = /^\[([ xX])\][ \t\n]+/;
const INLINE_TAGS = { emphasis: "em", strong: "strong", strikethrough: "del" };

const make = (tag, attributes = {}, children = [], onClick = null) => ({ tag, attributes, children, onClick });

/**
 * Descriptions of a document's blocks. Those of closed blocks are made once and kept with the block. `context` has `labels`, the words
 * of buttons and boxes, and `growing`, a GrowingText.
 */
export function viewsOf(blocks, context) {
  return blocks.map((block) => {
    if (block.view !== undefined) return block.view;
    const view = describe(block, context);
    if (block.closed && !block.open) block.view = view;
    return view;
  });
}

function describe(block, context) {
  switch (block.type) {
    case "paragraph": return make("p", {}, inline(block.text, block.open, context));
    case "heading": return make(`h${block.level}`, {}, inline(block.text, block.open, context));
    case "rule": return make("hr");
    case "quote": return make("blockquote", {}, viewsOf(block.children, context));
    case "list": return list(block, context);
    case "item": return item(block, context);
    case "code": return code(block, context);
    case "math": return make("pre", { class: "math" }, [make("code", {}, [block.text.slice(0, -1)])]);
    case "table": return table(block, context);
    default: throw new TypeError(`no view of a ${block.type}`);
  }
}

function list(block, context) {
  const attributes = block.loose ? { class: "loose" } : {};
  if (block.start !== null && block.start !== 1) attributes.start = String(block.start);
  return make(block.start === null ? "ul" : "ol", attributes, viewsOf(block.children, context));
}

function item(block, context) {
  const [first, ...others] = block.children;
  const task = first?.type === "paragraph" ? TASK.exec(first.text) : null;
  if (task === null) return make("li", {}, viewsOf(block.children, context));
  const isDone = task[1] !== " ";
  const attributes = { type: "checkbox", disabled: "", "aria-label": isDone ? context.labels.done : context.labels.notDone };
  if (isDone) attributes.checked = "";
  const text = inline(first.text.slice(task[0].length), first.open, context);
  return make("li", { class: "task" }, [make("p", {}, [make("input", attributes), ...text]), ...viewsOf(others, context)]);
}

function code(block, { labels }) {
  const attributes = block.language ? { class: `language-${block.language}` } : {};
  const text = block.text.endsWith("\n") ? block.text.slice(0, -1) : block.text;
  const bar = [
    make("span", { class: "code-language" }, block.language ? [block.language] : []),
    make("span", { class: "unseen", role: "status" }),
    make("button", { type: "button", class: "copy" }, [labels.copyLabel], (event) => copyCode(event.currentTarget, labels)),
  ];
  return make("div", { class: "code-block" }, [
    make("div", { class: "code-bar" }, bar),
    make("pre", {}, [make("code", attributes, text === "" ? [] : [text])]),
  ]);
}

function table(block, context) {
  const [head, ...rows] = block.children.map((row) => rowView(row, block.alignments, context));
  const body = rows.length > 0 ? [make("tbody", {}, rows)] : [];
  return make("div", { class: "table" }, [make("table", {}, [make("thead", {}, [head]), ...body])]);
}

/** Cells beyond the last column are shown in it, so that no text is lost. */
function rowView(row, alignments, context) {
  if (row.view !== undefined) return row.view;
  const most = row.header ? row.cells.length : alignments.length;
  const surplus = row.cells.length > most ? [row.cells.slice(most - 1).join(" | ")] : row.cells.slice(most - 1, most);
  const cells = [...row.cells.slice(0, most - 1), ...surplus];
  const view = make("tr", {}, cells.map((cell, column) => {
    const attributes = row.header ? { scope: "col" } : {};
    if (alignments[column]) attributes.class = `align-${alignments[column]}`;
    return make(row.header ? "th" : "td", attributes, inline(cell, row.open && column === cells.length - 1, context));
  }));
  if (!row.open) row.view = view;
  return view;
}

function inline(text, isOpen, { growing }) {
  return isOpen ? growing.viewsOf(text.trimEnd()) : parsed(text.trimEnd(), false);
}

const parsed = (text, isOpen) => parseInline(text, isOpen).map((node) => inlineView(node, false));

/** Descriptions of one text that is still being written. Its start, once nothing in it can change, is not parsed again. */
export class GrowingText {
  #settled = "";
  #views = [];

  viewsOf(text) {
    if (text.slice(0, this.#settled.length) !== this.#settled) {
      this.#settled = "";
      this.#views = [];
    }
    if (text.length - this.#settled.length > SETTLE_AT) this.#settle(text);
    return joined(this.#views, parsed(text.slice(this.#settled.length), true));
  }

  /** Up to a single space between two words, of which the parser sees the same on both sides whether the text is cut there or not. */
  #settle(text) {
    const end = text.lastIndexOf(" ", text.length - SETTLE_AT / 2);
    if (end <= this.#settled.length || !/^\S \S$/.test(text.slice(end - 1, end + 2))) return;
    const views = parsed(text.slice(this.#settled.length, end), false);
    const mayPair = views.some((view) => typeof view === "string" && UNSETTLED.test(view));
    if (mayPair && text.length - this.#settled.length < SETTLE_ANYWAY_AT) return;
    this.#settled = text.slice(0, end);
    this.#views = joined(this.#views, views);
  }
}

function joined(before, after) {
  if (typeof before.at(-1) !== "string" || typeof after[0] !== "string") return [...before, ...after];
  return [...before.slice(0, -1), before.at(-1) + after[0], ...after.slice(1)];
}

function inlineView(node, isInLink) {
  if (typeof node === "string") return node;
  switch (node.type) {
    case "break": return make("br");
    case "code": return make("code", {}, [node.text]);
    case "math": return make("code", { class: "math" }, [node.text]);
    case "link": return link(node, node.children.map((child) => inlineView(child, true)), isInLink);
    case "image": return link(node, [node.text], isInLink);
    default: return make(INLINE_TAGS[node.type], {}, node.children.map((child) => inlineView(child, isInLink)));
  }
}

/** Inside another link, or while its address is still being written, a link is only text. */
function link(node, children, isInLink) {
  if (isInLink) return make("span", {}, children);
  const attributes = {};
  if (node.address !== null) Object.assign(attributes, { href: node.address, rel: "noopener noreferrer", target: "_blank" });
  if (node.title) attributes.title = node.title;
  return make("a", attributes, children);
}
