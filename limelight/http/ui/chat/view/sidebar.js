// The list of conversations: open, rename, delete, search.

import { arrowKeys, keepTabStop } from "../../arrow-keys.js";
import { append, element, KeyedChildren, setAttribute, setText } from "../../dom.js";
import { say } from "../../strings.js";
import { confirm } from "./confirm.js";
import { openMenu } from "./menu.js";

export class Sidebar {
  #actions;
  #list = element("conversations");
  #children;
  #shown = { records: [], current: null, isBusy: () => false };

  /** `actions`: `open(id)`, `rename(id, title)` and `remove(id)`. */
  constructor(actions) {
    this.#actions = actions;
    this.#children = new KeyedChildren(this.#list, (item) => new Entry(item, actions));
    arrowKeys(this.#list, "li");
    element("search").addEventListener("input", () => this.draw());
    element("search").addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown") return;
      event.preventDefault();
      this.#list.querySelector("button")?.focus();
    });
  }

  /** Shows `records`; `current` is the id of the one that is open, `isBusy(id)` tells of answers in progress. */
  show(records, current, isBusy) {
    this.#shown = { records, current, isBusy };
    this.draw();
  }

  draw() {
    const { records, current, isBusy } = this.#shown;
    const wanted = element("search").value.trim().toLocaleLowerCase();
    const found = records.filter((record) => record.title.toLocaleLowerCase().includes(wanted));
    const items = found.map((record) => ({ record, open: record.id === current, busy: isBusy(record.id) }));
    this.#children.show(items, ({ record }) => record.id);
    element("no-match").hidden = found.length > 0 || wanted === "";
    keepTabStop(this.#list);
  }
}

class Entry {
  root = document.createElement("li");
  #actions;
  #item;
  #open = append(this.root, "button", "open");
  #more = append(this.root, "button", "quiet icon", "⋯");

  constructor({ record }, actions) {
    this.#actions = actions;
    this.#open.type = this.#more.type = "button";
    this.#open.tabIndex = this.#more.tabIndex = -1;
    this.#more.setAttribute("aria-haspopup", "menu");
    this.#open.addEventListener("click", () => actions.open(record.id));
    this.#open.addEventListener("dblclick", () => this.#rename());
    this.#more.addEventListener("click", () => this.#menu());
  }

  update(item) {
    this.#item = item;
    const title = item.record.title || say("untitled");
    setText(this.#open, title);
    this.#open.title = title;
    setAttribute(this.#open, "aria-current", item.open ? "true" : null);
    setAttribute(this.#open, "aria-label", item.busy ? say("answeringNow", { title }) : null);
    this.root.classList.toggle("busy", item.busy);
    setAttribute(this.#more, "aria-label", say("more", { title }));
  }

  #menu() {
    openMenu(this.#more, this.#more.getAttribute("aria-label"), [
      { text: say("rename"), act: () => this.#rename() },
      { text: say("remove"), act: () => this.#remove() },
    ]);
  }

  #rename() {
    const input = document.createElement("input");
    input.value = this.#item.record.title;
    input.maxLength = 200;
    input.setAttribute("aria-label", say("newTitle"));
    this.#open.replaceWith(input);
    input.select();
    let over = false;
    const end = (keep) => {
      if (over) return;
      over = true;
      input.replaceWith(this.#open);
      this.#open.focus();
      const title = input.value.trim();
      if (keep && title) this.#actions.rename(this.#item.record.id, title);
    };
    input.addEventListener("blur", () => end(true));
    input.addEventListener("keydown", (event) => {
      event.stopPropagation(); // arrow keys move in the text
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      end(event.key === "Enter");
    });
  }

  async #remove() {
    const { id, title } = this.#item.record;
    if (await confirm(say("removeQuestion", { title }), say("removeForGood"))) this.#actions.remove(id);
    else this.#more.focus();
  }
}
