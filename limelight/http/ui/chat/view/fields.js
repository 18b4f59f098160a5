// Labelled controls of a form, each with room for a hint and for what is wrong with it.

import { append, setText } from "../../dom.js";
import { say } from "../../strings.js";

/** A control made by `tag` below `parent`, with the id `setting-NAME`. `hint` is optional. */
export function field(parent, tag, name, label, hint = "") {
  const box = append(parent, "div", "field");
  const id = `setting-${name}`;
  append(box, "label", "", label).htmlFor = id;
  const control = append(box, tag);
  Object.assign(control, { id, name, spellcheck: false, autocomplete: "off" });
  append(box, "p", "hint", hint).id = `${id}-hint`;
  const error = append(box, "p", "error");
  error.id = `${id}-error`;
  error.hidden = true;
  control.setAttribute("aria-describedby", `${id}-hint ${id}-error`);
  return control;
}

/** A choice among `options`, `[value, text]` each. */
export function choice(parent, name, label, options, hint = "") {
  const select = field(parent, "select", name, label, hint);
  for (const [value, text] of options) append(select, "option", "", text).value = value;
  return select;
}

/** Says what is wrong with a control, or that nothing is: `error` is a `SettingError` or null. */
export function mark(control, error) {
  const place = document.getElementById(`${control.id}-error`);
  place.hidden = error === null;
  setText(place, error === null ? "" : say(error.text, error.values));
  control.setAttribute("aria-invalid", String(error !== null));
}
