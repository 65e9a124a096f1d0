/* Light or dark: the system's, until the reader says otherwise. No module, so that it runs before the first
   paint and nothing flashes. */
"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");

  try {
    const kept = localStorage.getItem("taslak-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* storage is forbidden: the system's it is */ }

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => { button.textContent = chosen() === "dark" ? "Light" : "Dark"; };
    name();
    dark.addEventListener("change", name);
    button.addEventListener("click", () => {
      root.dataset.theme = chosen() === "dark" ? "light" : "dark";
      try { localStorage.setItem("taslak-theme", root.dataset.theme); } catch { /* as above */ }
      name();
    });
  });
})();
