// The button that copies a block of code.

const SHOWN_MILLISECONDS = 2000;

/** Copies the code of the block that `button` belongs to. The button, and a status for screen readers, say how it went. */
export async function copyCode(button, labels) {
  const block = button.closest(".code-block");
  const status = block.querySelector("[role=status]");
  const copied = await write(block.querySelector("code").textContent, button);
  const said = copied ? labels.copiedLabel : labels.copyFailedLabel;
  button.textContent = said;
  status.textContent = said;
  setTimeout(() => {
    button.textContent = labels.copyLabel;
    status.textContent = "";
  }, SHOWN_MILLISECONDS);
}

/** Whether `text` is on the clipboard now. */
async function write(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return writeBySelection(text, button);
  }
}

/** For pages over plain HTTP, which have no `navigator.clipboard`, and for those who refused it. */
function writeBySelection(text, button) {
  const area = document.createElement("textarea");
  area.className = "unseen";
  area.value = text;
  button.after(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  button.focus();
  return copied;
}
