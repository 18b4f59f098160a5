// Markdown's blocks, line by line: CommonMark 0.31 and GitHub's tables, without HTML blocks and link reference definitions.
//
// A block is a plain object with a `type`. Once `closed` it never changes, so what is made of it can be kept.
//   document, quote { children }           list { kind, start, loose, children }     item { indent, children }
//   paragraph { text, last: its last line } heading { level, text }                   rule
//   code { language, text }, math { text } table { alignments, children }            row { cells, header }
// `open` on a paragraph, heading or row: text that is still being written ends in it.

import { Line } from "./markdown-line.js";
import { alignmentsOf, cellsOf } from "./markdown-tables.js";

const MAX_OPEN = 32; // lists count twice; deeper markers are text
const CONTAINERS = new Set(["document", "quote", "list", "item"]);
const ITEM = /^(?:([-*+])|(\d{1,9})([.)]))(?=[ \t]|$)/;
const HEADING = /^#{1,6}(?=[ \t]|$)/;
const FENCE = /^(?:`{3,}|~{3,})/;
const UNDERLINE = /^(?:=+|-+)[ \t]*$/;
const MATH_ENDS = { "$$": "$$", "\\[": "\\]" };

export class BlockParser {
  /** From the document to the innermost block that can still grow; each is the last child of the one before. */
  #open = [{ type: "document", children: [] }];
  /** Whether the line before was blank. */
  #afterBlank = false;
  /** The block that the line before wrote to. */
  #leaf = null;

  get document() {
    return this.#open[0];
  }

  /** Takes the next line, without its end. */
  push(text) {
    const line = new Line(text.replaceAll("\0", "\ufffd"));
    const depth = this.#matchContainers(line);
    const last = this.#open.at(-1);
    const isWithin = depth === this.#open.length - (CONTAINERS.has(last.type) ? 0 : 1);
    if (isWithin && this.#growLeaf(last, line)) this.#afterBlank = false;
    else if (line.isBlank) this.#blank(last, depth, isWithin);
    else {
      this.#start(line, depth, isWithin);
      this.#afterBlank = false;
    }
  }

  /** What is shown while `tail`, the line that is still being written (or null), may go on. This parser stays as it is. */
  preview(tail) {
    const copy = this.#fork();
    if (tail !== null) copy.push(tail);
    else copy.#leaf = copy.#open.at(-1);
    copy.#expectTable();
    if (copy.#leaf !== null) copy.#leaf.open = true;
    return copy.document;
  }

  /** The document with `tail` as its last line. This parser stays as it is. */
  whole(tail) {
    const copy = this.#fork();
    if (tail !== "") copy.push(tail);
    return copy.document;
  }

  #fork() {
    const copy = new BlockParser();
    copy.#open = this.#open.map((block) => (block.children ? { ...block, children: block.children.slice() } : { ...block }));
    copy.#open.slice(1).forEach((block, index) => copy.#open[index].children.splice(-1, 1, block));
    copy.#afterBlank = this.#afterBlank;
    return copy;
  }

  // ---- blocks that go on

  /** How many of the open blocks, from the outermost, the line belongs to; its markers are read. */
  #matchContainers(line) {
    let depth = 1;
    for (; depth < this.#open.length; depth += 1) {
      const block = this.#open[depth];
      if (block.type === "quote") {
        if (line.indent > 3 || line.content[0] !== ">") break;
        line.advance(1);
        line.skip(1);
      } else if (block.type === "item") {
        if (line.isBlank ? block.children.length === 0 : line.indent < block.indent) break;
        line.skip(block.indent);
      } else if (block.type !== "list") {
        break;
      }
    }
    return depth;
  }

  /** Adds the line to an open block of code, formulas or rows; false if it does not belong there. */
  #growLeaf(leaf, line) {
    if (leaf.type === "math" && !line.isBlank) {
      leaf.text += `${line.rest}\n`;
      if (line.rest.includes(leaf.end)) this.#closeTo(this.#open.length - 1);
    } else if (leaf.type === "code" && leaf.fence !== null) {
      if (line.indent < 4 && closes(leaf.fence, line.content)) {
        this.#closeTo(this.#open.length - 1);
      } else {
        line.skip(leaf.indent);
        leaf.text += `${line.rest}\n`;
      }
    } else if (leaf.type === "code" && line.indent >= 4 && !line.isBlank) {
      line.skip(4);
      leaf.text += `${leaf.blanks}${line.rest}\n`;
      leaf.blanks = "";
    } else {
      return false;
    }
    this.#leaf = leaf;
    return true;
  }

  #blank(last, depth, isWithin) {
    this.#afterBlank = true;
    this.#leaf = null;
    if (isWithin && last.type === "code") last.blanks += "\n";
    else this.#closeTo(depth);
  }

  // ---- blocks that begin

  #start(line, depth, isWithin) {
    let matched = depth;
    let interrupts = isWithin && this.#open.at(-1).type === "paragraph";
    for (;;) {
      const last = this.#open.at(-1);
      if (line.indent > 3) {
        if (last.type === "paragraph") break;
        line.skip(4);
        this.#add({ type: "code", language: "", text: `${line.rest}\n`, fence: null, blanks: "" }, matched);
        return;
      }
      if (interrupts && this.#turnParagraph(last, line.content)) return;
      if (this.#startLeaf(line, matched)) return;
      const isDeep = matched + 2 > MAX_OPEN;
      if (isDeep || !(this.#startQuote(line, matched) || this.#startItem(line, matched, interrupts))) break;
      matched = this.#open.length;
      interrupts = false;
      if (line.isBlank) return;
    }
    this.#addText(line, matched, isWithin);
  }

  /** What a line under a paragraph can make of it: a heading, or a table whose head is its last line. */
  #turnParagraph(paragraph, content) {
    const depth = this.#open.length - 1;
    if (UNDERLINE.test(content)) {
      const text = paragraph.text;
      this.#replaceParagraph("");
      this.#add({ type: "heading", level: content[0] === "=" ? 1 : 2, text }, depth);
      this.#closeTo(depth);
      return true;
    }
    const alignments = alignmentsOf(content);
    if (alignments === null || alignments.length !== cellsOf(paragraph.last).length) return false;
    this.#startTable(paragraph, alignments);
    return true;
  }

  #startTable(paragraph, alignments) {
    const depth = this.#open.length - 1;
    this.#replaceParagraph(paragraph.text.slice(0, -paragraph.last.length).trimEnd());
    const row = { type: "row", cells: cellsOf(paragraph.last), header: true, closed: true };
    this.#add({ type: "table", alignments, children: [row] }, depth);
    this.#leaf = row;
  }

  /** Leaves `text` of the open paragraph, which ends. */
  #replaceParagraph(text) {
    const parent = this.#open.at(-2);
    const paragraph = this.#open.pop();
    paragraph.closed = true;
    paragraph.text = text;
    if (text === "") parent.children.pop();
  }

  #startLeaf(line, depth) {
    const content = line.content;
    const fence = FENCE.exec(content)?.[0];
    const heading = HEADING.exec(content)?.[0];
    const math = MATH_ENDS[content.slice(0, 2)];
    if (heading !== undefined) {
      this.#add({ type: "heading", level: heading.length, text: headingText(content.slice(heading.length)) }, depth);
      this.#closeTo(depth);
    } else if (fence !== undefined && !(fence[0] === "`" && content.includes("`", fence.length))) {
      const language = content.slice(fence.length).trim().split(/[ \t]/, 1)[0];
      this.#add({ type: "code", language, text: "", fence, indent: line.indent, blanks: "" }, depth);
    } else if (math !== undefined && !content.includes(math, 2)) {
      this.#add({ type: "math", end: math, text: `${content}\n` }, depth);
    } else if (isRule(content)) {
      this.#add({ type: "rule" }, depth);
      this.#closeTo(depth);
    } else {
      return false;
    }
    return true;
  }

  #startQuote(line, depth) {
    if (line.content[0] !== ">") return false;
    line.advance(1);
    line.skip(1);
    this.#add({ type: "quote", children: [] }, depth);
    return true;
  }

  #startItem(line, depth, interrupts) {
    const found = ITEM.exec(line.content);
    if (found === null) return false;
    const [marker, bullet, number, delimiter] = found;
    const isEmpty = line.content.slice(marker.length).trim() === "";
    if (interrupts && (isEmpty || (number !== undefined && Number(number) !== 1))) return false;
    const before = line.indent + marker.length;
    line.advance(marker.length);
    const padding = isEmpty || line.indent > 4 ? 1 : line.indent;
    line.skip(padding);
    const kind = bullet ?? delimiter;
    this.#closeTo(depth);
    if (this.#open.at(-1).kind !== kind) {
      const list = { type: "list", kind, start: number === undefined ? null : Number(number), loose: false, children: [] };
      this.#add(list, depth);
    }
    this.#add({ type: "item", indent: before + padding, children: [] }, this.#open.length);
    return true;
  }

  #addText(line, depth, isWithin) {
    const last = this.#open.at(-1);
    if (last.type === "paragraph") {
      last.text += `\n${line.content}`;
      last.last = line.content;
      this.#leaf = last;
    } else if (last.type === "table" && isWithin) {
      const row = { type: "row", cells: cellsOf(line.content), header: false, closed: true };
      last.children.push(row);
      this.#leaf = row;
    } else {
      this.#add({ type: "paragraph", text: line.content, last: line.content }, depth);
    }
  }

  /** Opens `block` in the innermost of the first `depth` open blocks that can hold it. */
  #add(block, depth) {
    this.#closeTo(depth);
    if (this.#open.at(-1).type === "list" && block.type !== "item") this.#closeTo(this.#open.length - 1);
    const parent = this.#open.at(-1);
    if (this.#afterBlank && parent.children.length > 0) {
      if (parent.type === "list") parent.loose = true;
      else if (parent.type === "item") this.#open.at(-2).loose = true;
    }
    parent.children.push(block);
    this.#open.push(block);
    this.#leaf = CONTAINERS.has(block.type) ? null : block;
  }

  #closeTo(depth) {
    while (this.#open.length > depth) this.#open.pop().closed = true;
  }

  /** A line that begins with a bar is the head of a table until the next line says otherwise. */
  #expectTable() {
    const last = this.#open.at(-1);
    if (last.type !== "paragraph" || !/^\|./.test(last.last)) return;
    const start = last.text.length - last.last.length;
    const before = last.text.lastIndexOf("\n", start - 2) + 1;
    if (start === 0 || last.text[before] !== "|") this.#startTable(last, []);
  }
}

/** Three or more of the same sign, and white space. */
function isRule(content) {
  const sign = content[0];
  if (sign !== "-" && sign !== "*" && sign !== "_") return false;
  let count = 0;
  for (const letter of content) {
    if (letter === sign) count += 1;
    else if (letter !== " " && letter !== "\t") return false;
  }
  return count >= 3;
}

function closes(fence, content) {
  const signs = content.trimEnd();
  return signs.length >= fence.length && signs === fence[0].repeat(signs.length);
}

/** Without the signs that may close a heading. */
function headingText(rest) {
  const text = rest.trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  return end === 0 || text[end - 1] === " " || text[end - 1] === "\t" ? text.slice(0, end).trimEnd() : text;
}
