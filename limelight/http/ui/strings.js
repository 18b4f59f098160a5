// The language of a page: one table of texts for each, from strings/, in which no name occurs twice.

import * as chat from "./strings/chat.js";
import * as common from "./strings/common.js";
import * as requests from "./strings/requests.js";

export const parts = [common, chat, requests];
export const tables = {
  en: Object.assign({}, ...parts.map((part) => part.en)),
  ko: Object.assign({}, ...parts.map((part) => part.ko)),
};
let table = tables.en;

/** What elements say: the attribute that holds the name of a text, and what the text is written to. */
const SAID = [
  ["say", (node, text) => { node.textContent = text; }],
  ["sayLabel", (node, text) => node.setAttribute("aria-label", text)],
  ["sayPlaceholder", (node, text) => { node.placeholder = text; }],
];

/** Speaks the language of a tag such as "ko-KR", or English, from now on and in the elements marked with `data-say`. */
export function speak(tag) {
  const language = tag.toLowerCase().startsWith("ko") ? "ko" : "en";
  table = tables[language];
  document.documentElement.lang = language;
  for (const [name, write] of SAID) {
    const attribute = name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    for (const node of document.querySelectorAll(`[data-${attribute}]`)) write(node, table[node.dataset[name]]);
  }
}

/** The text `name`, with `{names}` replaced by values. */
export function say(name, values = {}) {
  return table[name].replace(/\{(\w+)\}/g, (_, key) => values[key]);
}
