// Elements of a page. Text from the server goes through `textContent` alone, so markup in it stays text.

export const element = (id) => document.getElementById(id);

/** A new element at the end of `parent`. */
export function append(parent, tag, className = "", text = "") {
  const child = document.createElement(tag);
  child.className = className;
  child.textContent = text;
  parent.append(child);
  return child;
}

/** Writes only what differs, so that nothing is laid out again for nothing. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The same for an attribute; null takes it away. */
export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Children of `parent`, one for each item, made once and kept while their item is there. */
export class KeyedChildren {
  #parent;
  #make;
  #children = new Map();

  /** `make(item)` gives an object with `root`, the child, and `update(item)`. */
  constructor(parent, make) {
    this.#parent = parent;
    this.#make = make;
  }

  get(name) {
    return this.#children.get(name);
  }

  /** Shows `items`, each named by `nameOf(item)`, in their order. */
  show(items, nameOf) {
    const names = new Set(items.map(nameOf));
    for (const [name, child] of this.#children) {
      if (names.has(name)) continue;
      child.root.remove();
      this.#children.delete(name);
    }
    let place = this.#parent.firstElementChild;
    for (const item of items) {
      const name = nameOf(item);
      let child = this.#children.get(name);
      if (child === undefined) {
        child = this.#make(item);
        this.#children.set(name, child);
      }
      if (child.root === place) place = place.nextElementSibling;
      else this.#parent.insertBefore(child.root, place);
      child.update(item);
    }
  }
}
