// Emphasis: which runs of `*`, `_` and `~~` open and close (CommonMark 0.31, 6.2), and what is between them.
//
// Beside Chinese, Japanese and Korean letters, which no space parts from the words around them, punctuation inside a run does not
// keep it from opening or closing: **"강조"**는 is strong.

const SPACE = /\s/u;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const UNSPACED = /[\p{Script=Han}\p{Script=Hangul}\p{Script=Hiragana}\p{Script=Katakana}]/u;
const MAX_RUN = 9; // longer ones are text
const MAX_OPENERS = 32; // the oldest is given up; with MAX_RUN this bounds how deep elements nest
const KINDS = { 1: "emphasis", 2: "strong" };

/** The run of `length` signs at `at` as an item for `resolve`. */
export function runAt(text, at, length) {
  const sign = text[at];
  const before = letterBefore(text, at);
  const after = letterAt(text, at + length);
  const isAfterEdge = SPACE.test(before) || PUNCTUATION.test(before);
  const isBeforeEdge = SPACE.test(after) || PUNCTUATION.test(after);
  const isTight = sign !== "_";
  const left = !SPACE.test(after) && (!PUNCTUATION.test(after) || isAfterEdge || (isTight && UNSPACED.test(before)));
  const right = !SPACE.test(before) && (!PUNCTUATION.test(before) || isBeforeEdge || (isTight && UNSPACED.test(after)));
  const isUsable = sign === "~" ? length === 2 : length <= MAX_RUN;
  return {
    type: "run",
    sign,
    length,
    left: length,
    canOpen: isUsable && left && (isTight || !right || PUNCTUATION.test(before)),
    canClose: isUsable && right && (isTight || !left || PUNCTUATION.test(after)),
    place: 0,
    number: 0,
  };
}

/** Items (strings, runs, nodes) as nodes. With `isOpen`, text that is still being written ends here: what is open, closes. */
export function resolve(items, isOpen = false) {
  const nodes = [];
  const openers = [];
  const floors = new Map();
  items.forEach((item, number) => {
    if (item.type !== "run") {
      nodes.push(item);
      return;
    }
    item.number = number;
    if (item.canClose) close(item, nodes, openers, floors);
    if (item.left === 0) return;
    if (item.canOpen) {
      if (openers.length === MAX_OPENERS) openers.shift();
      item.place = nodes.length;
      openers.push(item);
    }
    nodes.push(item);
  });
  while (isOpen && openers.length > 0) {
    const opener = openers.pop();
    while (opener.left > 0) wrap(opener, Math.min(opener.left, 2), nodes);
  }
  return merged(nodes);
}

/** Nodes, with strings that follow each other in one. */
function merged(nodes) {
  const result = [];
  let text = "";
  for (const node of nodes) {
    if (typeof node === "string") text += node;
    else if (node.type === "run") text += node.sign.repeat(node.left);
    else {
      if (text !== "") result.push(text);
      text = "";
      result.push(node);
    }
  }
  if (text !== "") result.push(text);
  return result;
}

/** Pairs a closing run with the openers before it. What was searched in vain is not searched again for the same kind of run. */
function close(run, nodes, openers, floors) {
  const kind = `${run.sign}${run.canOpen}${run.length % 3}`;
  while (run.left > 0) {
    let at = openers.length - 1;
    while (at >= 0 && openers[at].number >= (floors.get(kind) ?? 0) && !matches(openers[at], run)) at -= 1;
    if (at < 0 || openers[at].number < (floors.get(kind) ?? 0)) {
      floors.set(kind, run.number);
      return;
    }
    openers.length = at + 1;
    const opener = openers[at];
    const width = Math.min(opener.left, run.left, 2);
    wrap(opener, width, nodes);
    run.left -= width;
    if (opener.left === 0) openers.pop();
  }
}

function matches(opener, run) {
  if (opener.sign !== run.sign) return false;
  const isEitherBoth = opener.canClose || run.canOpen;
  const isThird = (opener.length + run.length) % 3 === 0 && (opener.length % 3 !== 0 || run.length % 3 !== 0);
  return run.sign === "~" || !(isEitherBoth && isThird);
}

/** Puts all nodes after `opener` into one, for `width` of its signs. */
function wrap(opener, width, nodes) {
  const children = merged(nodes.splice(opener.place + 1));
  opener.left -= width;
  nodes.push({ type: opener.sign === "~" ? "strikethrough" : KINDS[width], children });
}

function letterAt(text, at) {
  return at < text.length ? String.fromCodePoint(text.codePointAt(at)) : " ";
}

function letterBefore(text, at) {
  if (at === 0) return " ";
  const isPair = at > 1 && text.charCodeAt(at - 1) >= 0xdc00 && text.charCodeAt(at - 1) <= 0xdfff;
  return letterAt(text, isPair ? at - 2 : at - 1);
}
