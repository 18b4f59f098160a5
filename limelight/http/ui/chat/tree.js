// The messages of one conversation as a tree, and the path through it that is shown.

import { completeCalls } from "./messages.js";

const ROOT = "";

const inOrder = (one, other) => one.order - other.order || (one.id < other.id ? -1 : 1);

export class Tree {
  #messages = new Map();
  #children = new Map();
  #lastOrder = -1;

  /** `chosen` is kept, and changed, by the tree: the id of the version shown below each parent. */
  constructor(messages, chosen) {
    this.chosen = chosen;
    for (const message of [...messages].sort(inOrder)) this.#insert(message);
  }

  get(id) {
    return this.#messages.get(id);
  }

  /** Puts a new message below `parent` (null for the root), behind all others, and chooses it. */
  add(message, parent) {
    message.parent = parent;
    message.order = this.#lastOrder + 1;
    this.#insert(message);
    this.choose(message);
  }

  /** All versions of a message, the oldest first. */
  versions(message) {
    return this.#children.get(message.parent ?? ROOT);
  }

  choose(message) {
    this.chosen[message.parent ?? ROOT] = message.id;
  }

  /** The messages shown, from the first one to the end of the chosen branch. */
  path() {
    const path = [];
    for (let at = this.#shownBelow(ROOT); at !== undefined; at = this.#shownBelow(at.id)) path.push(at);
    return path;
  }

  /** The messages from the first one to `id`, whatever is chosen; none for null. */
  pathTo(id) {
    const path = [];
    for (let at = this.get(id); at !== undefined; at = this.get(at.parent)) path.push(at);
    return path.reverse();
  }

  #insert(message) {
    this.#messages.set(message.id, message);
    this.#lastOrder = Math.max(this.#lastOrder, message.order);
    const parent = message.parent ?? ROOT;
    if (!this.#children.has(parent)) this.#children.set(parent, []);
    this.#children.get(parent).push(message);
  }

  #shownBelow(parent) {
    const children = this.#children.get(parent) ?? [];
    return children.find((child) => child.id === this.chosen[parent]) ?? children.at(-1);
  }
}

/** The calls of the last answer on a path that have no result yet. */
export function openCalls(path) {
  const answer = path.findLast((message) => message.role !== "tool");
  if (answer?.role !== "assistant") return [];
  const results = new Set(path.slice(path.indexOf(answer)).map((message) => message.tool_call_id));
  return completeCalls(answer).filter((call) => !results.has(call.id));
}
