// A menu beside a button: arrow keys, Home and End move, Escape and Tab close it and go back to the button.

import { append } from "../../dom.js";

/** Opens a menu of `items`, `{ text, act }` each. */
export function openMenu(button, label, items) {
  const menu = append(document.body, "div", "menu");
  menu.setAttribute("role", "menu");
  menu.setAttribute("aria-label", label);
  menu.popover = "auto"; // closes at Escape and at a click elsewhere
  for (const { text, act } of items) {
    const item = append(menu, "button", "quiet", text);
    item.type = "button";
    item.setAttribute("role", "menuitem");
    item.tabIndex = -1;
    item.addEventListener("click", () => {
      menu.hidePopover();
      act();
    });
  }
  menu.addEventListener("keydown", (event) => move(menu, event));
  menu.addEventListener("toggle", ({ newState }) => {
    button.setAttribute("aria-expanded", String(newState === "open"));
    if (newState === "open") return;
    if (menu.contains(document.activeElement) || document.activeElement === document.body) button.focus();
    menu.remove();
  });
  menu.showPopover();
  place(menu, button.getBoundingClientRect());
  menu.firstElementChild.focus();
}

function move(menu, event) {
  if (event.key === "Tab") {
    event.preventDefault();
    menu.hidePopover();
    return;
  }
  const items = [...menu.children];
  const at = items.indexOf(document.activeElement);
  const target = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
  if (target === undefined) return;
  event.preventDefault();
  items.at(target % items.length).focus();
}

/** Below the button, or above it where there is no room, and within the window. */
function place(menu, anchor) {
  const { width, height } = menu.getBoundingClientRect();
  const below = anchor.bottom + height <= innerHeight;
  menu.style.top = `${below ? anchor.bottom : Math.max(0, anchor.top - height)}px`;
  menu.style.left = `${Math.max(0, Math.min(anchor.left, innerWidth - width - 8))}px`;
}
