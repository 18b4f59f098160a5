// The messages of the conversation that is shown: one view for each, kept while its message is there.

import { element, KeyedChildren } from "../../dom.js";
import { openCalls } from "../tree.js";
import { AnswerView } from "./answer.js";
import { ResultsForm } from "./calls.js";
import { MessageView } from "./message.js";

const NEAR_END = 80; // CSS pixels

export class Thread {
  #actions;
  #scroller = element("scroller");
  #root = element("conversation");
  #children;
  #results;
  #shown = null;

  /** `actions`: `edit`, `regenerate`, `goOn` and `choose` as for the views, and `giveResults(calls, texts)`. */
  constructor(actions) {
    const inViews = {
      ...actions,
      choose: (message, arrow) => this.#choose(message, arrow),
      follow: (change) => this.#follow(change),
    };
    this.#actions = actions;
    this.#children = new KeyedChildren(this.#root, (item) =>
      new (item.message.role === "assistant" ? AnswerView : MessageView)(item, inViews));
    this.#results = new ResultsForm(element("results"), actions.giveResults);
    this.#scroller.addEventListener("scroll", () => this.#offerEnd(), { passive: true });
    element("to-end").addEventListener("click", () => this.toEnd());
  }

  /** Shows the chosen branch of a conversation. `runOf(answer)` gives the run of an answer in progress. */
  show(conversation, tree, busy, runOf) {
    const path = tree.path();
    const other = this.#shown !== conversation;
    this.#shown = conversation;
    element("welcome").hidden = path.length > 0;
    const items = path.map((message) => ({ message, versions: tree.versions(message), busy, run: runOf(message) }));
    this.#follow(() => {
      this.#children.show(items, ({ message }) => message.id);
      this.#results.update(busy ? [] : openCalls(path));
    });
    if (!other) return;
    this.toEnd();
    requestAnimationFrame(() => this.toEnd()); // heights were guesses until now
  }

  /** There is more of an answer; it need not be one that is shown. */
  grow(answer) {
    this.#children.get(answer.id)?.grow();
  }

  /** Makes every view anew, in the language that is spoken now. */
  clear() {
    this.#children.show([], () => "");
    this.#results.update([]);
  }

  toEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  /** Focus stays on the arrow, which belongs to another view afterwards. */
  #choose(message, arrow) {
    this.#actions.choose(message);
    const view = this.#children.get(message.id).root;
    const button = view.querySelector(`[data-arrow="${arrow}"]:enabled`) ?? view.querySelector("[data-arrow]:enabled");
    button?.focus();
  }

  /** Keeps the end in view while text grows, unless the reader has scrolled up. */
  #follow(change) {
    const follows = this.#distance() < NEAR_END;
    change();
    if (follows) this.toEnd();
    else this.#offerEnd();
  }

  #offerEnd() {
    element("to-end").hidden = this.#distance() < NEAR_END;
  }

  #distance() {
    return this.#scroller.scrollHeight - this.#scroller.scrollTop - this.#scroller.clientHeight;
  }
}
