// The chat page: brings the conversations, the server and what is seen of both together.

import { append, element, setText } from "./dom.js";
import { askForKey } from "./key-dialog.js";
import { remember, remembered, speakChosen } from "./preferences.js";
import { say } from "./strings.js";
import { chatBody } from "./chat/chat-request.js";
import { Chats } from "./chat/chats.js";
import { askServer, NO_SERVER } from "./chat/models.js";
import { readSettings, SettingError } from "./chat/settings.js";
import { openStore } from "./chat/store.js";
import { exportText, importText, TransferError } from "./chat/transfer.js";
import { Composer } from "./chat/view/composer.js";
import { watchKeys } from "./chat/view/keys.js";
import { openSettings } from "./chat/view/settings-dialog.js";
import { Sidebar } from "./chat/view/sidebar.js";
import { SidebarDrawer } from "./chat/view/sidebar-drawer.js";
import { Thread } from "./chat/view/thread.js";

const RETRY_SECONDS = 1.5;
const MOST_ANNOUNCED = 1000; // characters of an answer that a screen reader is given at once

speakChosen();

let server = NO_SERVER;
const store = await openStore();
const chats = new Chats(store, {
  list: () => sidebar.show(chats.list(), chats.record?.id, (id) => chats.runOf(id) !== undefined),
  shown: () => show(),
  grown: (answer) => thread.grow(answer),
  ended: (answer) => end(answer),
  gone: () => begin(),
  failed: (error) => notify(say("keepFailed", { message: error.message })),
});
const thread = new Thread({
  edit: (message, text) => ask((how) => chats.edit(message, text, how)),
  regenerate: (answer) => ask((how) => chats.regenerate(answer, how)),
  goOn: (answer) => ask((how) => chats.goOn(answer, how)),
  giveResults: (calls, texts) => ask((how) => chats.giveResults(calls, texts, how)),
  choose: (message) => chats.choose(message),
});
const composer = new Composer({ send: (text) => ask((how) => chats.say(text, how)), stop: () => chats.stop() });
const sidebar = new Sidebar({ open, rename: (id, title) => chats.rename(id, title), remove });
const drawer = new SidebarDrawer();

// ---- what is shown

function show() {
  thread.show(chats.record.id, chats.tree, chats.busy, (message) => chats.run(message));
  element("model").value = server.model(chats.record.settings.model) ?? "";
  composer.update(server.models.length > 0, chats.busy);
  document.title = `${chats.record.title || say("newChat")} · Limelight`;
}

function notify(text) {
  element("notice").hidden = text === null;
  setText(element("notice"), text ?? "");
}

function announce(text) {
  setText(element("announcer"), text);
}

// ---- which conversation

async function open(id) {
  drawer.closeIfOver();
  if (location.hash === `#${id}`) return;
  location.hash = id; // and the listener below does the rest
}

function begin() {
  drawer.closeIfOver();
  if (location.hash === "") chats.begin(lastSettings());
  else location.hash = "";
  composer.focus();
}

async function follow() {
  const id = location.hash.slice(1);
  notify(store.lasting ? null : say("notKept"));
  if (id !== "" && (id === chats.record?.id || (await chats.open(id)))) return;
  if (id !== "") notify(say("noSuchConversation"));
  chats.begin(lastSettings());
}

async function remove(id) {
  const current = id === chats.record.id;
  await chats.remove(id);
  if (current) begin();
}

// ---- questions and answers

/** Begins an answer by `begin(how)`, unless settings are wrong: then they are shown. Returns whether it has begun. */
function ask(begin) {
  const { settings } = chats.record;
  const model = server.model(settings.model);
  const how = {
    model,
    format: settings.schema.trim() === "" ? "text" : "json",
    body: (path, begun) => chatBody(path, settings, model, server.reasoningSwitch, begun),
  };
  try {
    begin(how);
  } catch (error) {
    if (!(error instanceof SettingError)) throw error;
    editSettings(error.setting);
    return false;
  }
  if (location.hash !== `#${chats.record.id}`) history.pushState(null, "", `#${chats.record.id}`);
  announce(say("saidAnswering"));
  thread.toEnd();
  return true;
}

function end(answer) {
  if (answer.conversation !== chats.record?.id) return;
  show();
  const texts = { stopped: say("saidStopped"), done: answer.content.slice(0, MOST_ANNOUNCED) };
  announce(texts[answer.status] ?? say("saidFailed"));
}

// ---- settings, of this conversation and of those to come

function lastSettings() {
  try {
    return readSettings(JSON.parse(remembered("settings")));
  } catch {
    return readSettings(null); // somebody else wrote there
  }
}

function setSettings(settings) {
  chats.set(settings);
  remember("settings", JSON.stringify(settings));
}

function editSettings(first = null) {
  openSettings(chats.record.settings, server, { changed: setSettings, spoken: speakAnew }, first);
}

function speakAnew() {
  thread.clear();
  show();
  sidebar.draw();
}

element("open-settings").addEventListener("click", () => editSettings());
element("model").addEventListener("focus", findModels);
element("model").addEventListener("change", ({ target }) => setSettings({ ...chats.record.settings, model: target.value }));

// ---- files

element("export").addEventListener("click", async () => {
  const file = new Blob([exportText(await chats.everything())], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = `limelight-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
});

element("import").addEventListener("click", () => element("import-file").click());
element("import-file").addEventListener("change", async ({ target }) => {
  try {
    const conversations = importText(await target.files[0].text());
    await chats.add(conversations);
    notify(say("imported", { count: conversations.length }));
  } catch (error) {
    notify(error instanceof TransferError ? say(error.text, error.values) : say("keepFailed", { message: error.message }));
  }
  drawer.closeIfOver();
  target.value = "";
});

// ---- the server

/** Asks until the server has told what it serves. */
async function findServer() {
  for (;;) {
    try {
      server = await askServer();
      break;
    } catch (error) {
      if (error.status === 401) await askForKey();
      else {
        notify(error.status === 503 ? say("loading") : say("unreachable", { seconds: RETRY_SECONDS }));
        await new Promise((resume) => setTimeout(resume, RETRY_SECONDS * 1000));
      }
    }
  }
  notify(store.lasting ? null : say("notKept"));
  element("model").disabled = false;
  showModels();
}

function showModels() {
  const picker = element("model");
  picker.replaceChildren();
  for (const model of server.models) append(picker, "option", "", model).value = model;
  show();
}

/** Adapters come and go while the page is open. */
async function findModels() {
  const found = await askServer().catch(() => server); // whoever asks next hears what is wrong
  const changed = found.models.join("\n") !== server.models.join("\n");
  server = found;
  if (changed) showModels();
}

element("new-chat").addEventListener("click", begin);
addEventListener("hashchange", follow);
addEventListener("pagehide", () => chats.flush());
document.addEventListener("visibilitychange", () => chats.flush());
watchKeys({ stop: () => chats.stop(), begin, focus: () => composer.focus(), settings: editSettings, search: () => drawer.search() });

await chats.load();
await follow();
composer.focus();
findServer();
