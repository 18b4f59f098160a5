// Arrow keys in lists and tables: one tab stop for all their buttons, up and down within a column, left and right within a row.

/** Watches `container`, whose rows match `row`; a button's place in its row is its column. */
export function arrowKeys(container, row) {
  const rows = () => [...container.querySelectorAll(row)].filter((candidate) => !candidate.hidden);
  const buttons = (inRow) => [...inRow.querySelectorAll("button")];

  container.addEventListener("focusin", (event) => {
    for (const other of container.querySelectorAll('button[tabindex="0"]')) other.tabIndex = -1;
    if (event.target.tagName === "BUTTON") event.target.tabIndex = 0;
  });

  container.addEventListener("keydown", (event) => {
    const inRow = event.target.closest(row);
    if (inRow === null || event.altKey || event.ctrlKey || event.metaKey) return;
    const all = rows();
    const place = all.indexOf(inRow);
    const column = buttons(inRow).indexOf(event.target);
    const targets = {
      ArrowUp: [place - 1, column],
      ArrowDown: [place + 1, column],
      ArrowLeft: [place, column - 1],
      ArrowRight: [place, column + 1],
      Home: [0, column],
      End: [all.length - 1, column],
    };
    const target = targets[event.key];
    if (target === undefined) return;
    event.preventDefault();
    const found = all[target[0]];
    if (found !== undefined) buttons(found)[target[1]]?.focus();
  });
}

/** Sees to it that a tab stop is left when rows come and go. */
export function keepTabStop(container) {
  const stop = container.querySelector('button[tabindex="0"]');
  if (stop !== null && !stop.closest("[hidden]")) return;
  if (stop !== null) stop.tabIndex = -1;
  const first = [...container.querySelectorAll("button")].find((button) => !button.closest("[hidden]"));
  if (first !== undefined) first.tabIndex = 0;
}
