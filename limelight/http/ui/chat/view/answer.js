// One answer on the page: reasoning, text, calls, how it ended, and how fast it came.

import { append, setText } from "../../dom.js";
import { say } from "../../strings.js";
import { prettyJson } from "../answer.js";
import { canGoOn } from "../messages.js";
import { CallsView } from "./calls.js";
import { copyButton } from "./copy.js";
import { Drawing } from "./drawing.js";
import { showFigures, waitingText } from "./figures.js";
import { AnswerText, codeBlock } from "./text.js";
import { Versions } from "./versions.js";

export class AnswerView {
  root = document.createElement("article");
  #answer;
  #run;
  #actions;
  #drawing = new Drawing(() => this.#actions.follow(() => this.#draw()));
  #reasoning = append(this.root, "details", "reasoning");
  #summary = append(this.#reasoning, "summary");
  #thoughts = append(this.#reasoning, "div", "thoughts");
  #body = append(this.root, "div", "text");
  #text = new AnswerText(this.#body);
  #calls = new CallsView(append(this.root, "div", "calls"));
  #error = append(this.root, "p", "error");
  #status = append(this.root, "p", "status");
  #figures = append(this.root, "p", "figures");
  #tools = append(this.root, "div", "tools");
  #versions;
  #again;
  #goOn;
  #shownJson = null;

  /** `actions`: `regenerate(answer)`, `goOn(answer)`, `choose(message, arrow)`, and `follow(change)`, which keeps the end in view. */
  constructor({ message }, actions) {
    this.#answer = message;
    this.#actions = actions;
    this.#versions = new Versions(this.#tools, actions.choose);
    this.#goOn = this.#button("goOn", actions.goOn);
    this.#again = this.#button("regenerate", actions.regenerate);
    this.#tools.append(copyButton("copy", () => this.#answer.content));
    this.root.setAttribute("aria-label", message.model);
  }

  /** `run`: of the answer, while it is in progress; `busy`: any answer of the conversation is. */
  update({ message, versions, busy, run }) {
    this.#answer = message;
    this.#run = run;
    this.#versions.update(message, versions);
    this.#again.disabled = this.#goOn.disabled = busy;
    this.#goOn.hidden = !canGoOn(message);
    this.#draw();
  }

  #button(name, act) {
    const button = append(this.#tools, "button", "quiet", say(name));
    button.type = "button";
    button.addEventListener("click", () => act(this.#answer));
    return button;
  }

  /** There is more of it. */
  grow() {
    this.#drawing.request();
  }

  #draw() {
    const answer = this.#answer;
    const running = this.#run !== undefined;
    this.root.className = running ? "message answer waiting" : "message answer";
    this.root.setAttribute("aria-busy", String(running));
    this.#reasoning.hidden = answer.reasoning === "";
    setText(this.#summary, say(running && answer.content === "" ? "reasoningNow" : "reasoning"));
    setText(this.#thoughts, answer.reasoning);
    this.#drawText(answer, running);
    this.#calls.update(answer.tool_calls, running);
    this.#drawEnd(answer, running);
    this.#tools.hidden = running;
  }

  #drawText(answer, running) {
    if (answer.format !== "json" || answer.content === "") this.#text.update(answer.content, !running);
    else if (this.#shownJson !== answer.content || !running) {
      this.#shownJson = answer.content;
      const { text, error } = running ? { text: answer.content, error: null } : prettyJson(answer.content);
      this.#body.replaceChildren(codeBlock(text));
      if (running) return;
      const verdict = append(this.#body, "p", error === null ? "hint verdict" : "error verdict");
      verdict.textContent = error === null ? say("validJson") : say("invalidJson", { message: error });
    }
  }

  #drawEnd(answer, running) {
    const waiting = running ? this.#run.waiting : null;
    this.#status.hidden = waiting === null;
    if (waiting !== null) this.#drawWaiting(waiting);
    const texts = { lost: say("lostRest"), failed: answer.error ?? say("failed") };
    const error = running ? undefined : texts[answer.status];
    this.#error.hidden = error === undefined;
    setText(this.#error, error ?? "");
    this.#figures.hidden = running;
    if (!running) showFigures(this.#figures, answer);
  }

  #drawWaiting(waiting) {
    const text = waitingText(waiting);
    if (this.#status.firstChild?.textContent === text) return;
    this.#status.replaceChildren(text);
    if (waiting.name !== "lost") return;
    const retry = append(this.#status, "button", "quiet", say("tryNow"));
    retry.type = "button";
    retry.addEventListener("click", () => this.#run?.retry());
  }
}
