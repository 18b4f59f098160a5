// All conversations of this browser, the one that is shown, and the answers in progress. Knows nothing of the page.

import { Run } from "./run.js";
import { answerMessage, newConversation, titleOf, toolMessage, userMessage } from "./messages.js";
import { Tree } from "./tree.js";

const SAVE_MILLISECONDS = 300;

export class Chats {
  /** The conversation that is shown: its record, and the tree of its messages. */
  record;
  tree;
  #store;
  #listeners;
  #records = new Map();
  #runs = new Map();
  #unsaved = new Map();
  #numShown = 0;
  #channel = new BroadcastChannel("limelight.conversations");

  /**
   * `listeners`: `list()` when conversations or their state have changed, `shown()` when messages came or went in the one
   * that is shown, `grown(answer)` when there is more of an answer, `ended(answer)`, `gone()` when another page has deleted
   * the conversation, `failed(error)` when something could not be kept.
   */
  constructor(store, listeners) {
    this.#store = store;
    this.#listeners = listeners;
    this.#channel.onmessage = ({ data }) => this.#changedElsewhere(data);
  }

  /** Reads what is kept, and goes on with the answers that were in progress. */
  async load() {
    for (const record of await this.#store.conversations()) this.#records.set(record.id, record);
    for (const answer of await this.#store.streaming()) this.#follow(answer, (run) => run.resume());
  }

  /** The one that was changed last first. */
  list() {
    return [...this.#records.values()].sort((one, other) => other.updated - one.updated);
  }

  /** The answer in progress of a conversation, if there is one. */
  runOf(conversation) {
    return [...this.#runs.values()].find((run) => run.answer.conversation === conversation);
  }

  run(answer) {
    return this.#runs.get(answer.id);
  }

  get busy() {
    return this.runOf(this.record.id) !== undefined;
  }

  // ---- which one is shown

  /** Shows an empty conversation, which is kept from its first message on. */
  begin(settings) {
    this.#numShown += 1;
    this.record = newConversation(settings);
    this.tree = new Tree([], this.record.chosen);
    this.#listeners.shown();
    this.#listeners.list();
  }

  /** Shows a conversation that is kept; returns whether there is one of this id. */
  async open(id) {
    if (!this.#records.has(id)) return false;
    this.#numShown += 1;
    const number = this.#numShown;
    const messages = await this.#store.messages(id);
    if (!this.#records.has(id)) return false;
    if (number !== this.#numShown) return true; // another one has been opened meanwhile
    this.record = this.#records.get(id);
    this.tree = new Tree(messages.map((message) => this.#live(message)), this.record.chosen);
    this.#listeners.shown();
    this.#listeners.list();
    return true;
  }

  /** An answer in progress is one object, wherever it is shown. One whose stream nobody knows is lost. */
  #live(message) {
    if (message.status !== "streaming") return message;
    if (!this.#runs.has(message.id) && message.stream !== null) this.#follow(message, (run) => run.resume());
    return this.#runs.get(message.id)?.answer ?? { ...message, status: "lost" };
  }

  // ---- questions and answers: `ask` gives the model, the format and the body, from the path
  // to the answer and, if it goes on with one, from what there is of it

  say(text, ask) {
    this.#answer([userMessage(text)], this.tree.path().at(-1)?.id ?? null, ask);
  }

  /** Another version of a question, with an answer of its own; a branch begins there. */
  edit(message, text, ask) {
    const { id, created, order, ...rest } = message;
    const fresh = message.role === "tool" ? toolMessage({ id: rest.tool_call_id, name: rest.name }, text) : userMessage(text);
    this.#answer([fresh], message.parent, ask);
  }

  /** The results of tool calls, in the order of `calls`, and then an answer. */
  giveResults(calls, texts, ask) {
    const messages = calls.map((call, place) => toolMessage(call, texts[place]));
    this.#answer(messages, this.tree.path().at(-1).id, ask);
  }

  /** Another version of an answer. */
  regenerate(answer, ask) {
    this.#answer([], answer.parent, ask);
  }

  /** A version of an answer that was cut which begins with what there is of it. */
  goOn(answer, ask) {
    this.#answer([], answer.parent, ask, answer);
  }

  choose(message) {
    this.tree.choose(message);
    this.#save({ conversations: [this.record] });
    this.#listeners.shown();
  }

  stop() {
    return this.runOf(this.record.id)?.stop();
  }

  #answer(messages, parent, ask, begun = null) {
    const { record, tree } = this;
    const path = tree.pathTo(parent);
    const body = ask.body([...path, ...messages], begun); // may refuse, and then nothing has changed
    const answer = answerMessage(ask.model, begun?.format ?? ask.format);
    if (begun !== null) Object.assign(answer, { content: begun.content, reasoning: begun.reasoning });
    const added = [...messages, answer];
    let at = parent;
    for (const message of added) {
      message.conversation = record.id;
      tree.add(message, at);
      at = message.id;
    }
    if (record.title === "") record.title = titleOf(messages[0].content);
    record.updated = Date.now();
    this.#records.set(record.id, record);
    this.#save({ conversations: [record], messages: added });
    this.#follow(answer, (run) => run.ask(body));
  }

  /** Runs an answer to its end, and keeps it as it grows. Other pages hear of it once they can follow it, too. */
  async #follow(answer, begin) {
    let followed = answer.stream !== null;
    const run = new Run(answer, () => {
      this.#saveSoon(answer);
      if (!followed && answer.stream !== null) {
        followed = true;
        this.#saveNow(answer).then(() => this.#tell(answer.conversation));
      }
      this.#listeners.grown(answer);
    });
    this.#runs.set(answer.id, run);
    if (answer.conversation === this.record?.id) this.#listeners.shown();
    this.#listeners.list();
    await begin(run);
    this.#runs.delete(answer.id);
    this.#saveNow(answer).then(() => this.#tell(answer.conversation));
    this.#listeners.list();
    this.#listeners.ended(answer);
  }

  // ---- the list

  rename(id, title) {
    const record = this.#records.get(id);
    Object.assign(record, { title, titled: true });
    this.#save({ conversations: [record] });
    this.#tell(id);
    this.#listeners.list();
  }

  async remove(id) {
    this.#records.delete(id);
    this.#listeners.list();
    await this.runOf(id)?.stop();
    await this.#store.remove(id).catch(this.#listeners.failed);
    this.#tell(id);
  }

  /** Keeps settings with the conversation that is shown. */
  set(settings) {
    this.record.settings = settings;
    if (this.#records.has(this.record.id)) this.#save({ conversations: [this.record] });
  }

  // ---- all of them

  async everything() {
    await this.flush();
    return Promise.all(this.list().map(async (record) => ({
      ...record, messages: await this.#store.messages(record.id),
    })));
  }

  /** Adds conversations. Of one that is there already, messages are joined and what was changed last holds. */
  async add(conversations) {
    const records = [];
    const messages = [];
    for (const { messages: theirs, ...record } of conversations) {
      const known = this.#records.get(record.id);
      if (known === undefined || known.updated < record.updated) records.push(record);
      const ours = new Set((await this.#store.messages(record.id)).map((message) => message.id));
      messages.push(...theirs.filter((message) => !ours.has(message.id)));
    }
    await this.#store.put({ conversations: records, messages });
    for (const record of records) this.#records.set(record.id, record);
    for (const { id } of conversations) this.#tell(id);
    this.#listeners.list();
    if (conversations.some(({ id }) => id === this.record.id)) await this.open(this.record.id);
  }

  // ---- keeping

  #saveSoon(answer) {
    if (this.#unsaved.has(answer.id)) return;
    const timer = setTimeout(() => this.#saveNow(answer), SAVE_MILLISECONDS);
    this.#unsaved.set(answer.id, { answer, timer });
  }

  #saveNow(answer) {
    this.#forget(answer.id);
    return this.#records.has(answer.conversation) ? this.#save({ messages: [answer] }) : Promise.resolve();
  }

  #forget(id) {
    clearTimeout(this.#unsaved.get(id)?.timer);
    this.#unsaved.delete(id);
  }

  /** Writes what has not been written yet. */
  flush() {
    return Promise.all([...this.#unsaved.values()].map(({ answer }) => this.#saveNow(answer)));
  }

  #save(records) {
    return this.#store.put(records).catch(this.#listeners.failed);
  }

  // ---- other pages of this server

  #tell(id) {
    this.#channel.postMessage(id);
  }

  async #changedElsewhere(id) {
    if (this.runOf(id) !== undefined) return; // its end brings both together
    const record = await this.#store.conversation(id);
    if (record === undefined) this.#records.delete(id);
    else this.#records.set(id, record);
    this.#listeners.list();
    if (id !== this.record?.id) return;
    if (record === undefined) this.#listeners.gone();
    else await this.open(id);
  }
}
