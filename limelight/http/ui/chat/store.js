// Where conversations are kept: in the browser's IndexedDB, or in memory where it has none for us.
//
// A message is a record of its own, so that a growing answer is written without the rest of its conversation.

const NAME = `limelight ${new URL("../../", import.meta.url).pathname}`; // one for each place where a server is mounted
const VERSION = 1;
const CONVERSATIONS = "conversations";
const MESSAGES = "messages";

/** The store: an `IndexedStore`, or a `MemoryStore` if the browser refuses. */
export async function openStore() {
  try {
    return new IndexedStore(await openDatabase());
  } catch {
    return new MemoryStore();
  }
}

function openDatabase() {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open(NAME, VERSION);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
      const messages = opening.result.createObjectStore(MESSAGES, { keyPath: ["conversation", "id"] });
      messages.createIndex("conversation", "conversation");
      messages.createIndex("stream", "stream.id"); // of answers in progress alone: others have none
    };
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = opening.onblocked = () => reject(opening.error);
  });
}

class IndexedStore {
  lasting = true;
  #database;

  constructor(database) {
    this.#database = database;
    database.onversionchange = () => database.close();
  }

  conversations() {
    return this.#read(CONVERSATIONS, (records) => records.getAll());
  }

  conversation(id) {
    return this.#read(CONVERSATIONS, (records) => records.get(id));
  }

  /** All messages of a conversation, in no order. */
  messages(conversation) {
    return this.#read(MESSAGES, (records) => records.index("conversation").getAll(conversation));
  }

  /** Answers whose stream had not ended when they were written last. */
  streaming() {
    return this.#read(MESSAGES, (records) => records.index("stream").getAll());
  }

  /** Writes all of it, or nothing. Throws what the browser says: that it has no room left, as a rule. */
  put({ conversations = [], messages = [] }) {
    return this.#write((transaction) => {
      for (const record of conversations) transaction.objectStore(CONVERSATIONS).put(record);
      for (const record of messages) transaction.objectStore(MESSAGES).put(record);
    });
  }

  /** Deletes a conversation and its messages. */
  remove(id) {
    return this.#write((transaction) => {
      transaction.objectStore(CONVERSATIONS).delete(id);
      transaction.objectStore(MESSAGES).delete(IDBKeyRange.bound([id], [id, []]));
    });
  }

  #read(name, ask) {
    return new Promise((resolve, reject) => {
      const asking = ask(this.#database.transaction(name).objectStore(name));
      asking.onsuccess = () => resolve(asking.result);
      asking.onerror = () => reject(asking.error);
    });
  }

  #write(change) {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction([CONVERSATIONS, MESSAGES], "readwrite");
      transaction.oncomplete = () => resolve();
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
      change(transaction);
    });
  }
}

/** The same, until the page is closed. */
export class MemoryStore {
  lasting = false;
  #conversations = new Map();
  #messages = new Map();

  async conversations() {
    return structuredClone([...this.#conversations.values()]);
  }

  async conversation(id) {
    return structuredClone(this.#conversations.get(id));
  }

  async messages(conversation) {
    return structuredClone([...this.#messages.values()].filter((message) => message.conversation === conversation));
  }

  async streaming() {
    return [];
  }

  async put({ conversations = [], messages = [] }) {
    for (const record of structuredClone(conversations)) this.#conversations.set(record.id, record);
    for (const record of structuredClone(messages)) this.#messages.set(`${record.conversation} ${record.id}`, record);
  }

  async remove(id) {
    this.#conversations.delete(id);
    for (const [key, message] of this.#messages) if (message.conversation === id) this.#messages.delete(key);
  }
}
