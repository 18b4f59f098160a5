// Markdown inside a block: text to strings and nodes.
//
//   emphasis, strong, strikethrough { children }   code { text }   math { text, with its delimiters }   break
//   link { address, title, children }              image { address, title, text }
// An address is null while it is still being written. HTML is text.

import { resolve, runAt } from "./markdown-emphasis.js";
import { bareAddressAt, bracketedAddressAt, entityAt, isPunctuation, mayBecomeSafe, safeAddress, targetAt } from "./markdown-links.js";

const PLAIN = /[^\\`*_~[\]!<&$:\n]+/y;
const MAX_BRACKETS = 32; // open ones; the oldest is given up
const MATH_ENDS = { "(": "\\)", "[": "\\]" };

/** With `isOpen`, the text is still being written: what it has opened is taken as closed at its end, where no half of a sign is shown. */
export function parseInline(text, isOpen = false) {
  return new InlineParser(isOpen ? withoutHalfSigns(text) : text, isOpen).parse();
}

function withoutHalfSigns(text) {
  let end = text.length;
  while (end > 0 && "*_~`\\[".includes(text[end - 1])) end -= 1;
  if (text[end] === "[" && text[end - 1] === "!") end -= 1;
  return text.slice(0, end);
}

class InlineParser {
  #text;
  #isOpen;
  #at = 0;
  /** Where the plain text begins that is not among the items yet. */
  #plain = 0;
  #items = [];
  #brackets = [];
  /** Length of a run of backticks -> the places of all such runs, the next one last. */
  #ticks = null;
  /** Ends of formulas that do not occur any more. */
  #missing = new Set();
  /** Up to here no dollar sign ends a formula. */
  #noDollar = 0;

  constructor(text, isOpen) {
    this.#text = text;
    this.#isOpen = isOpen;
  }

  parse() {
    while (this.#at < this.#text.length) {
      PLAIN.lastIndex = this.#at;
      if (PLAIN.test(this.#text)) this.#at = PLAIN.lastIndex;
      if (this.#at < this.#text.length) this.#sign(this.#text[this.#at]);
    }
    this.#flush(this.#at);
    return resolve(this.#items, this.#isOpen);
  }

  /** Reads the sign at this place, which stays text if it means nothing there. */
  #sign(sign) {
    const before = this.#at;
    if (sign === "\\") this.#backslash();
    else if (sign === "`") this.#code();
    else if (sign === "*" || sign === "_" || sign === "~") this.#run(sign);
    else if (sign === "[") this.#openBracket(1);
    else if (sign === "!" && this.#text[this.#at + 1] === "[") this.#openBracket(2);
    else if (sign === "]") this.#closeBracket();
    else if (sign === "<") this.#bracketedAddress();
    else if (sign === "&") this.#entity();
    else if (sign === "$") this.#dollar();
    else if (sign === ":") this.#bareAddress();
    else if (sign === "\n") this.#lineEnd();
    if (this.#at === before) this.#at += 1;
  }

  /** Adds an item, which stands for the text from here to `end`. */
  #add(item, end) {
    this.#flush(this.#at);
    this.#items.push(item);
    this.#at = this.#plain = end;
  }

  #flush(end) {
    if (end > this.#plain) this.#items.push(this.#text.slice(this.#plain, end));
    this.#plain = end;
  }

  // ---- signs

  #backslash() {
    const next = this.#text[this.#at + 1];
    if (next === "\n") this.#add({ type: "break" }, this.#at + 2);
    else if (MATH_ENDS[next] === undefined || !this.#math(2, MATH_ENDS[next])) {
      if (isPunctuation(next)) this.#add(next, this.#at + 2);
    }
  }

  #code() {
    const start = this.#endOfRun("`");
    const length = start - this.#at;
    const close = this.#nextTicks(length, start);
    if (close !== null) this.#add({ type: "code", text: codeText(this.#text.slice(start, close)) }, close + length);
    else if (this.#isOpen) this.#add({ type: "code", text: codeText(this.#text.slice(start)) }, this.#text.length);
    else this.#at = start;
  }

  /** The place of the next run of `length` backticks from `from` on, or null. */
  #nextTicks(length, from) {
    if (this.#ticks === null) {
      this.#ticks = new Map();
      for (const run of this.#text.matchAll(/`+/g)) {
        const places = this.#ticks.get(run[0].length);
        if (places === undefined) this.#ticks.set(run[0].length, [run.index]);
        else places.push(run.index);
      }
      for (const places of this.#ticks.values()) places.reverse();
    }
    const places = this.#ticks.get(length) ?? [];
    while (places.length > 0 && places.at(-1) < from) places.pop();
    return places.at(-1) ?? null;
  }

  #run(sign) {
    const end = this.#endOfRun(sign);
    this.#add(runAt(this.#text, this.#at, end - this.#at), end);
  }

  #endOfRun(sign) {
    let end = this.#at + 1;
    while (this.#text[end] === sign) end += 1;
    return end;
  }

  #openBracket(length) {
    this.#add(this.#text.slice(this.#at, this.#at + length), this.#at + length);
    if (this.#brackets.length === MAX_BRACKETS) this.#brackets.shift();
    this.#brackets.push({ place: this.#items.length - 1, isImage: length === 2 });
  }

  #closeBracket() {
    const bracket = this.#brackets.pop();
    if (bracket === undefined || this.#text[this.#at + 1] !== "(") return;
    const target = targetAt(this.#text, this.#at + 2);
    if (target === null) return;
    const { destination, title, end } = target;
    const address = end === null ? null : safeAddress(destination);
    if (address === null && !(end === null && this.#isOpen && mayBecomeSafe(destination))) return;
    this.#flush(this.#at);
    const children = resolve(this.#items.splice(bracket.place).slice(1));
    if (bracket.isImage) {
      this.#add({ type: "image", address, title, text: plainText(children) || destination }, end ?? this.#text.length);
    } else {
      this.#add({ type: "link", address, title, children }, end ?? this.#text.length);
      this.#brackets.length = 0;
    }
  }

  #bracketedAddress() {
    const found = bracketedAddressAt(this.#text, this.#at);
    if (found === null || (found.end === null && !this.#isOpen)) return;
    this.#add(link(found.address, found.label), found.end ?? this.#text.length);
  }

  #bareAddress() {
    if (!this.#text.startsWith("://", this.#at)) return;
    const start = [this.#at - 5, this.#at - 4].find((place) => place >= this.#plain && this.#isScheme(place));
    if (start === undefined) return;
    const address = bareAddressAt(this.#text, start);
    if (address === null) return;
    this.#at = start;
    this.#add(link(address, address), start + address.length);
  }

  #isScheme(place) {
    const scheme = this.#text.slice(place, this.#at).toLowerCase();
    return (scheme === "https" || scheme === "http") && !/\w/.test(this.#text[place - 1] ?? " ");
  }

  #entity() {
    const entity = entityAt(this.#text, this.#at);
    if (entity !== null) this.#add(entity.text, entity.end);
  }

  #dollar() {
    const length = this.#endOfRun("$") - this.#at;
    if (length > 2) this.#at += length;
    else if (length === 2) this.#math(2, "$$");
    else this.#dollarMath();
  }

  /** `$x$`: no white space inside the signs, no digit after them, all on one line. A price is no formula. */
  #dollarMath() {
    const text = this.#text;
    if (this.#at < this.#noDollar || /\s/.test(text[this.#at + 1] ?? " ")) return;
    for (let at = this.#at + 1; ; at += 1) {
      if (at >= text.length || text[at] === "\n") {
        this.#noDollar = at;
        return;
      }
      if (text[at] === "\\") at += 1;
      else if (text[at] === "$" && !/\s/.test(text[at - 1]) && !/\d/.test(text[at + 1] ?? " ")) {
        this.#add({ type: "math", text: text.slice(this.#at, at + 1) }, at + 1);
        return;
      }
    }
  }

  /** A formula from its opening signs, `length` of them, to `close`; false if there is none. */
  #math(length, close) {
    if (this.#missing.has(close)) return false;
    const found = this.#text.indexOf(close, this.#at + length);
    if (found < 0 && !this.#isOpen) {
      this.#missing.add(close);
      return false;
    }
    const end = found < 0 ? this.#text.length : found + close.length;
    this.#add({ type: "math", text: this.#text.slice(this.#at, end) }, end);
    return true;
  }

  /** Two spaces before the end of a line break it. Spaces around it are dropped. */
  #lineEnd() {
    let end = this.#at;
    while (end > this.#plain && this.#text[end - 1] === " ") end -= 1;
    const isHard = this.#at - end >= 2;
    const next = this.#at + 1;
    this.#flush(end);
    this.#plain = this.#at;
    this.#add(isHard ? { type: "break" } : "\n", next);
  }
}

const link = (address, label) => ({ type: "link", address, title: "", children: [label] });

/** Ends of lines as spaces, and without one space at both ends, unless there is nothing else. */
function codeText(content) {
  const text = content.replaceAll("\n", " ");
  const isPadded = text.startsWith(" ") && text.endsWith(" ") && text.trim() !== "";
  return isPadded ? text.slice(1, -1) : text;
}

function plainText(nodes) {
  return nodes.map((node) => (typeof node === "string" ? node : (node.text ?? plainText(node.children ?? [])))).join("");
}
