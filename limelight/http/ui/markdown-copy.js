// The button that copies a block of code.

import { copyText } from "./clipboard.js";

const SHOWN_MILLISECONDS = 2000;

/** Copies the code of the block that `button` belongs to. The button, and a status for screen readers, say how it went. */
export async function copyCode(button, labels) {
  const block = button.closest(".code-block");
  const status = block.querySelector("[role=status]");
  const copied = await copyText(block.querySelector("code").textContent);
  const said = copied ? labels.copiedLabel : labels.copyFailedLabel;
  button.textContent = said;
  status.textContent = said;
  setTimeout(() => {
    button.textContent = labels.copyLabel;
    status.textContent = "";
  }, SHOWN_MILLISECONDS);
}
