// The keys of the page. A dialog, a menu and an editor have Escape first.

/** `actions`: `stop`, `begin`, `focus`, `settings` and `search`. */
export function watchKeys(actions) {
  const withAlt = { KeyN: actions.begin, KeyK: actions.search, KeyS: () => actions.settings() };
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open], [popover]")) return;
    const action = chosen(event, withAlt, actions);
    if (action === undefined) return;
    event.preventDefault();
    action();
  });
}

function chosen(event, withAlt, actions) {
  if (event.ctrlKey || event.metaKey) return undefined;
  if (event.altKey) return withAlt[event.code];
  if (event.key === "Escape") return event.target.tagName === "INPUT" ? undefined : actions.stop;
  const writing = ["INPUT", "TEXTAREA", "SELECT"].includes(event.target.tagName);
  return event.key === "/" && !writing ? actions.focus : undefined;
}
