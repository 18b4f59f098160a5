// What the reader has chosen for every page of this server: language and theme. Kept in the browser, if it lets us.

import { speak } from "./strings.js";

export const THEMES = ["system", "light", "dark"];
export const LANGUAGES = ["auto", "en", "ko"];

const prefix = "limelight.";

export function remembered(name) {
  try {
    return localStorage.getItem(prefix + name);
  } catch {
    return null;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(prefix + name, value);
  } catch {
    // A browser that keeps nothing forgets it with the page.
  }
}

export const chosenLanguage = () => (LANGUAGES.includes(remembered("language")) ? remembered("language") : "auto");

export const chosenTheme = () => document.documentElement.dataset.theme;

/** Speaks the chosen language: "auto" is the browser's. */
export function speakChosen() {
  const language = chosenLanguage();
  speak(language === "auto" ? navigator.language : language);
}

export function chooseLanguage(language) {
  remember("language", language);
  speakChosen();
}

export function chooseTheme(theme) {
  remember("theme", theme);
  document.documentElement.dataset.theme = theme;
}
