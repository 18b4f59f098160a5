// Where the list of conversations stands: beside the conversation, or over it where the window is narrow.

import { element } from "../../dom.js";
import { remember, remembered } from "../../preferences.js";

const NARROW = matchMedia("(max-width: 52rem)");

export class SidebarDrawer {
  #open;

  constructor() {
    this.#settle();
    NARROW.addEventListener("change", () => this.#settle());
    element("toggle-sidebar").addEventListener("click", () => this.#toggle(!this.#open));
    element("close-sidebar").addEventListener("click", () => this.#toggle(false));
    element("sidebar").addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !NARROW.matches || event.defaultPrevented) return;
      event.preventDefault();
      this.#toggle(false);
    });
  }

  /** Where it covers the conversation, it makes way for it. */
  closeIfOver() {
    if (NARROW.matches && this.#open) this.#toggle(false);
  }

  /** Opens the list and goes to its search. */
  search() {
    if (!this.#open) this.#toggle(true);
    element("search").focus();
  }

  #settle() {
    this.#show(!NARROW.matches && remembered("sidebar") !== "closed");
  }

  #toggle(open) {
    if (!NARROW.matches) remember("sidebar", open ? "open" : "closed");
    this.#show(open);
    element(open ? "search" : "toggle-sidebar").focus();
  }

  #show(open) {
    this.#open = open;
    element("sidebar").hidden = !open;
    element("toggle-sidebar").setAttribute("aria-expanded", String(open));
  }
}
