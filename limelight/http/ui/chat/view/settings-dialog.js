// The settings of the conversation that is shown, and those of the page. What is typed holds at once.

import { append } from "../../dom.js";
import { chooseLanguage, chosenLanguage, chooseTheme, chosenTheme } from "../../preferences.js";
import { say } from "../../strings.js";
import { DEFAULTS, NO_SETTINGS, NUMBERS, requestFields, SAMPLING, SettingError } from "../settings.js";
import { choice, field, mark } from "./fields.js";

/** Request fields by the settings that have another name. */
const FIELD_OF = { schema: "response_format", reasoning: "chat_template_kwargs" };

const KEYS = [
  ["Enter", "keySend"], ["Esc", "keyStop"], ["Alt + N", "keyNew"], ["/", "keyFocus"], ["Alt + K", "keySearch"],
  ["Alt + S", "keySettings"],
];

/**
 * Opens the dialog over `settings`. `server` tells what the server can do (`Server` of models.js); `changed(settings)` and
 * `spoken()`, of another language, are called while it is open. `first` names the setting to begin with.
 */
export function openSettings(settings, server, { changed, spoken }, first = null) {
  const dialog = append(document.body, "dialog", "settings");
  dialog.id = "settings";
  dialog.setAttribute("aria-labelledby", "settings-title");
  const build = () => new Form(dialog, settings, server, changed, (language) => {
    chooseLanguage(language);
    spoken();
    build();
    document.getElementById("setting-language").focus();
  });
  build();
  dialog.addEventListener("close", () => dialog.remove(), { once: true });
  dialog.showModal();
  if (first !== null) document.getElementById(`setting-${first}`).focus();
}

class Form {
  #settings;
  #server;
  #changed;
  #controls = new Map();

  constructor(dialog, settings, server, changed, speak) {
    this.#settings = settings;
    this.#server = server;
    this.#changed = changed;
    const form = document.createElement("form");
    form.method = "dialog";
    dialog.replaceChildren(form);
    const bar = append(form, "div", "section-bar");
    append(bar, "h2", "", say("settings")).id = "settings-title";
    append(bar, "button", "primary", say("close"));
    this.#keep(field(form, "textarea", "system", say("system"), say("systemHint")));
    this.#sampling(group(form, "sampling"));
    this.#tools(form);
    this.#keep(field(form, "textarea", "schema", say("schema"), say("schemaHint")));
    appearance(group(form, "appearance"), speak);
    const keys = append(group(form, "shortcuts"), "dl", "shortcuts");
    for (const [key, text] of KEYS) {
      append(append(keys, "dt"), "kbd", "", key);
      append(keys, "dd", "", say(text));
    }
  }

  #sampling(section) {
    append(section, "p", "hint", say("samplingHint"));
    const grid = append(section, "div", "grid");
    for (const { name, whole } of NUMBERS) {
      const control = field(grid, "input", name, say(name));
      control.inputMode = whole ? "numeric" : "decimal";
      control.placeholder = DEFAULTS[name] ?? "";
      this.#keep(control);
    }
    if (this.#server.reasoningSwitch !== null) {
      const modes = [["", say("modelsOwn")], ["on", say("on")], ["off", say("off")]];
      this.#keep(choice(grid, "reasoning", say("reasoningMode"), modes));
    }
    this.#keep(field(section, "textarea", "stop", say("stopAt"), say("stopHint")));
    const reset = append(section, "button", "quiet", say("reset"));
    reset.type = "button";
    reset.id = "reset";
    reset.addEventListener("click", () => {
      for (const name of SAMPLING) this.#set(name, "");
    });
  }

  #tools(form) {
    this.#keep(field(form, "textarea", "tools", say("tools"), say("toolsHint")));
    const choices = [["", say("choiceAuto")], ["required", say("choiceRequired")], ["none", say("choiceNone")]];
    const hint = this.#server.callsTools ? "" : say("noAutoTools");
    this.#keep(choice(form, "tool_choice", say("toolChoice"), choices, hint));
  }

  #keep(control) {
    const { name } = control;
    this.#controls.set(name, control);
    control.value = this.#settings[name];
    if (control.tagName === "TEXTAREA") control.rows = Math.min(10, Math.max(2, control.value.split("\n").length));
    if (name !== "system" && !this.#server.takes(FIELD_OF[name] ?? name)) {
      control.disabled = true;
      mark(control, new SettingError(name, "notServed"));
      return;
    }
    control.addEventListener("input", () => this.#set(name, control.value));
    this.#check(name);
  }

  #set(name, value) {
    const control = this.#controls.get(name);
    if (control === undefined) return;
    if (control.value !== value) control.value = value;
    this.#settings = { ...this.#settings, [name]: value };
    this.#changed(this.#settings);
    this.#check(name);
  }

  /** Each setting for itself, so that one that is wrong hides no other. */
  #check(name) {
    try {
      requestFields({ ...NO_SETTINGS, [name]: this.#settings[name] }, this.#server.reasoningSwitch);
      mark(this.#controls.get(name), null);
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      mark(this.#controls.get(name), error);
    }
  }
}

function appearance(section, speak) {
  const grid = append(section, "div", "grid");
  const themes = [["system", say("themeSystem")], ["light", say("themeLight")], ["dark", say("themeDark")]];
  const theme = choice(grid, "theme", say("theme"), themes);
  theme.value = chosenTheme();
  theme.addEventListener("input", () => chooseTheme(theme.value));
  const languages = [["auto", say("languageAuto")], ["en", "English"], ["ko", "한국어"]];
  const language = choice(grid, "language", say("language"), languages);
  language.value = chosenLanguage();
  language.addEventListener("input", () => speak(language.value));
}

function group(form, name) {
  const section = append(form, "fieldset");
  append(section, "legend", "", say(name));
  return section;
}
