// As much of a document as the Markdown modules use, to run them without a browser.
import "./page-modules.mjs";

class Node {
  childNodes = [];
  parentNode = null;

  get lastChild() {
    return this.childNodes.at(-1) ?? null;
  }

  get textContent() {
    return this.childNodes.map((child) => child.textContent).join("");
  }

  append(child) {
    child.remove();
    child.parentNode = this;
    this.childNodes.push(child);
  }

  remove() {
    if (this.parentNode === null) return;
    const siblings = this.parentNode.childNodes;
    siblings.splice(siblings.lastIndexOf(this), 1);
    this.parentNode = null;
  }

  replaceWith(other) {
    const siblings = this.parentNode.childNodes;
    siblings[siblings.indexOf(this)] = other;
    other.parentNode = this.parentNode;
    this.parentNode = null;
  }
}

class Text extends Node {
  constructor(data) {
    super();
    this.data = data;
  }

  get textContent() {
    return this.data;
  }

  appendData(data) {
    this.data += data;
  }
}

class Element extends Node {
  attributes = new Map();

  constructor(tag) {
    super();
    this.tag = tag;
  }

  setAttribute(name, value) {
    this.attributes.set(name, String(value));
  }

  removeAttribute(name) {
    this.attributes.delete(name);
  }

  addEventListener() {}
}

globalThis.document = {
  createElement: (tag) => new Element(tag),
  createTextNode: (data) => new Text(data),
  createDocumentFragment: () => new Node(),
};

export const emptyElement = () => new Element("div");

const VOID = new Set(["br", "hr", "input"]);
const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** The children of `node` as HTML, attributes by name; a block of code without its bar. */
export function html(node) {
  return node.childNodes.map((child) => {
    if (child instanceof Text) return escape(child.data);
    if (child.attributes.get("class") === "code-bar") return "";
    const attributes = [...child.attributes].sort().map(([name, value]) => ` ${name}="${escape(value).replaceAll('"', "&quot;")}"`).join("");
    return `<${child.tag}${attributes}>${VOID.has(child.tag) ? "" : `${html(child)}</${child.tag}>`}`;
  }).join("");
}

/** The text that a reader sees, without the bars over code. */
export function shownText(node) {
  if (node instanceof Text) return node.data;
  if (node instanceof Element && node.attributes.get("class") === "code-bar") return "";
  return node.childNodes.map(shownText).join("");
}

/** All elements below `node`. */
export function* elements(node) {
  for (const child of node.childNodes) {
    if (child instanceof Element) yield child;
    yield* elements(child);
  }
}
