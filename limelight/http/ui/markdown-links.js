// Where links of Markdown lead, and HTML's names of characters. Only addresses of three schemes become links.

const SCHEMES = ["https://", "http://", "mailto:"];
const PUNCTUATION = new Set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~");
const MAX_NESTED_PARENTHESES = 32;
const ADDRESS = /[\w\-.~:/?#@!$&'()*+,;=%]+/y; // RFC 3986, without brackets
const EMAIL = /^[\w.!#$%&'*+/=?^`{|}~-]{1,64}@[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,8}$/i;
const ENTITY = /&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z][a-z0-9]{1,31}));/iy;
const NAMED = new Map(
  Object.entries({
    amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…",
    ndash: "–", mdash: "—", lsquo: "‘", rsquo: "’", sbquo: "‚", ldquo: "“", rdquo: "”", bdquo: "„", laquo: "«", raquo: "»",
    lsaquo: "‹", rsaquo: "›", bull: "•", middot: "·", sect: "§", para: "¶", dagger: "†", Dagger: "‡", permil: "‰",
    deg: "°", plusmn: "±", times: "×", divide: "÷", minus: "−", ne: "≠", le: "≤", ge: "≥", asymp: "≈", equiv: "≡",
    infin: "∞", sum: "∑", prod: "∏", int: "∫", radic: "√", part: "∂", nabla: "∇", isin: "∈", notin: "∉", cap: "∩", cup: "∪",
    sub: "⊂", sup: "⊃", sube: "⊆", supe: "⊇", empty: "∅", forall: "∀", exist: "∃", and: "∧", or: "∨", not: "¬",
    larr: "←", rarr: "→", uarr: "↑", darr: "↓", harr: "↔", lArr: "⇐", rArr: "⇒", hArr: "⇔",
    alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ε", theta: "θ", lambda: "λ", mu: "μ", pi: "π", rho: "ρ",
    sigma: "σ", tau: "τ", phi: "φ", omega: "ω", Delta: "Δ", Sigma: "Σ", Omega: "Ω", micro: "µ",
    frac12: "½", frac14: "¼", frac34: "¾", sup1: "¹", sup2: "²", sup3: "³", euro: "€", pound: "£", yen: "¥", cent: "¢",
    szlig: "ß", auml: "ä", ouml: "ö", uuml: "ü", Auml: "Ä", Ouml: "Ö", Uuml: "Ü", eacute: "é", egrave: "è", ecirc: "ê",
    aacute: "á", agrave: "à", acirc: "â", atilde: "ã", aring: "å", ccedil: "ç", iacute: "í", ntilde: "ñ", oacute: "ó",
    ocirc: "ô", otilde: "õ", oslash: "ø", uacute: "ú", aelig: "æ", hearts: "♥", check: "✓", star: "☆",
  }),
);

export const isPunctuation = (letter) => PUNCTUATION.has(letter);

/** The character reference at `at` as `{ text, end }`; null if there is none, or if its name is unknown. */
export function entityAt(text, at) {
  ENTITY.lastIndex = at;
  const found = ENTITY.exec(text);
  if (found === null) return null;
  const [whole, decimal, hexadecimal, name] = found;
  const end = at + whole.length;
  if (name !== undefined) return NAMED.has(name) ? { text: NAMED.get(name), end } : null;
  const code = decimal === undefined ? Number.parseInt(hexadecimal, 16) : Number(decimal);
  const isCharacter = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
  return { text: isCharacter ? String.fromCodePoint(code) : "\ufffd", end };
}

/** `destination` as an address that may be linked to, else null. */
export function safeAddress(destination) {
  const lower = destination.slice(0, 8).toLowerCase();
  const scheme = SCHEMES.find((known) => lower.startsWith(known));
  if (scheme === undefined || destination.length === scheme.length) return null;
  return destination.replace(/[\s\u0000-\u001f\u007f]/g, encodeURIComponent);
}

/** Whether an address of which `start` is written may still become one that may be linked to. */
export function mayBecomeSafe(start) {
  const lower = start.slice(0, 8).toLowerCase();
  return SCHEMES.some((scheme) => scheme.startsWith(lower) || lower.startsWith(scheme));
}

/**
 * What stands in the parentheses after `[text]`: `{ destination, title, end }` with the place after them; `end` is null if
 * the text ends inside them. Null if this is no link. `at` is the place after the opening parenthesis.
 */
export function targetAt(text, at) {
  let place = skipSpace(text, at);
  const start = place;
  place = text[place] === "<" ? endOfBracketed(text, place) : endOfBare(text, place);
  if (place === null) return null;
  const isBracketed = text[start] === "<" && text[place - 1] === ">" && place > start + 1;
  const destination = unescape(isBracketed ? text.slice(start + 1, place - 1) : text.slice(start, place));
  let title = "";
  const next = skipSpace(text, place);
  if (next > place && next < text.length && text[next] !== ")") {
    const close = endOfTitle(text, next);
    if (close === null) return null;
    title = unescape(text.slice(next + 1, close - 1));
    place = skipSpace(text, close);
  } else {
    place = next;
  }
  if (place >= text.length) return { destination: destination.replace(/^</, ""), title, end: null };
  return text[place] === ")" ? { destination, title, end: place + 1 } : null;
}

/** `<address>` at `at` as `{ address, label, end }`; `end` is null if the text ends in an address. Null if it is none. */
export function bracketedAddressAt(text, at) {
  ADDRESS.lastIndex = at + 1;
  const label = ADDRESS.exec(text)?.[0] ?? "";
  const end = at + 1 + label.length;
  if (end === text.length) return safeAddress(label) ? { label, address: null, end: null } : null;
  if (text[end] !== ">") return null;
  const address = safeAddress(label) ?? (label.length < 256 && EMAIL.test(label) ? `mailto:${label}` : null);
  return address === null ? null : { label, address, end: end + 1 };
}

/** The address that begins at `at` with the scheme http or https, without the punctuation that ends a sentence; null if it has no host. */
export function bareAddressAt(text, at) {
  if (!/^https?:\/\/[a-z0-9]/i.test(text.slice(at, at + 9))) return null;
  ADDRESS.lastIndex = at;
  const found = ADDRESS.exec(text)[0];
  let end = found.length;
  let surplus = count(found, ")") - count(found, "(");
  for (; end > 0; end -= 1) {
    if (found[end - 1] === ")" && surplus > 0) surplus -= 1;
    else if (!"?!.,:;*_~'".includes(found[end - 1])) break;
  }
  return found.slice(0, end);
}

const count = (text, letter) => text.split(letter).length - 1;

function skipSpace(text, at) {
  let place = at;
  while (text[place] === " " || text[place] === "\t" || text[place] === "\n") place += 1;
  return place;
}

function endOfBracketed(text, start) {
  for (let at = start + 1; at < text.length; at += 1) {
    if (text[at] === ">") return at + 1;
    if (text[at] === "<" || text[at] === "\n") return null;
    if (text[at] === "\\") at += 1;
  }
  return text.length;
}

function endOfBare(text, start) {
  let depth = 0;
  let at = start;
  for (; at < text.length; at += 1) {
    const letter = text[at];
    if (letter <= " " || letter === "\u007f") break;
    if (letter === "\\" && isPunctuation(text[at + 1])) at += 1;
    else if (letter === "(" && ++depth > MAX_NESTED_PARENTHESES) return null;
    else if (letter === ")" && --depth < 0) break;
  }
  return Math.min(at, text.length);
}

/** The place after a quoted title, or the end of a text that ends inside it; null if no title begins here. */
function endOfTitle(text, start) {
  const close = { '"': '"', "'": "'", "(": ")" }[text[start]];
  if (close === undefined) return null;
  for (let at = start + 1; at < text.length; at += 1) {
    if (text[at] === close) return at + 1;
    if (text[at] === "(" && close === ")") return null;
    if (text[at] === "\\") at += 1;
  }
  return text.length;
}

/** Without backslash escapes, and with character references resolved. */
function unescape(text) {
  let plain = "";
  let from = 0;
  for (let at = 0; at < text.length; at += 1) {
    const entity = text[at] === "&" ? entityAt(text, at) : null;
    if (entity !== null) {
      plain += text.slice(from, at) + entity.text;
      from = entity.end;
      at = from - 1;
    } else if (text[at] === "\\" && isPunctuation(text[at + 1])) {
      plain += text.slice(from, at);
      from = at + 1;
      at += 1;
    }
  }
  return plain + text.slice(from);
}
