// The chosen theme, before anything is painted: the one script that a page waits for.

{
  let theme = null;
  try {
    theme = localStorage.getItem("limelight.theme");
  } catch {
    // A browser that keeps nothing follows the system.
  }
  document.documentElement.dataset.theme = ["light", "dark"].includes(theme) ? theme : "system";
}
