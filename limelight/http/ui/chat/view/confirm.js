// A question before something is gone for good.

import { append } from "../../dom.js";
import { say } from "../../strings.js";

/** Resolves to whether the reader wants it. Escape and the other button are a no. */
export function confirm(question, yes) {
  const dialog = append(document.body, "dialog");
  dialog.setAttribute("aria-labelledby", "confirm-question");
  const form = append(dialog, "form");
  form.method = "dialog";
  append(form, "p", "", question).id = "confirm-question";
  const actions = append(form, "div", "actions");
  const cancel = append(actions, "button", "quiet", say("cancel"));
  const agree = append(actions, "button", "danger", yes);
  agree.value = "yes";
  dialog.showModal();
  cancel.focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    }, { once: true });
  });
}
