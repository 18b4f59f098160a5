// Descriptions of elements (markdown-view.js) on the page. Elements are made one by one and text goes in as text: markup in it stays text.

/** Changes the children of `parent`, which `before` describes, to what `after` describes. What is the same is not touched. */
export function patchChildren(parent, before, after) {
  const shared = Math.min(before.length, after.length);
  for (let index = 0; index < shared; index += 1) {
    if (before[index] !== after[index]) patch(parent.childNodes[index], before[index], after[index]);
  }
  for (let index = before.length; index > shared; index -= 1) parent.lastChild.remove();
  for (const description of after.slice(shared)) parent.append(build(description));
}

function build(description) {
  if (typeof description === "string") return document.createTextNode(description);
  const node = document.createElement(description.tag);
  for (const [name, value] of Object.entries(description.attributes)) node.setAttribute(name, value);
  if (description.onClick) node.addEventListener("click", description.onClick);
  patchChildren(node, [], description.children);
  return node;
}

function patch(node, before, after) {
  if (typeof before === "string" && typeof after === "string") { // compared by slices: startsWith is many times slower
    if (after.slice(0, before.length) === before) node.appendData(after.slice(before.length));
    else node.data = after;
  } else if (before.tag === undefined || before.tag !== after.tag) {
    node.replaceWith(build(after));
  } else {
    patchAttributes(node, before.attributes, after.attributes);
    patchChildren(node, before.children, after.children);
  }
}

function patchAttributes(node, before, after) {
  for (const name of Object.keys(before)) {
    if (after[name] === undefined) node.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(after)) {
    if (before[name] !== value) node.setAttribute(name, value);
  }
}
