// Keys of every page: the next and the previous document (links with rel="next" and rel="prev"), the search, the list of keys. They
// can be switched off (WCAG 2.2, 2.1.4), which the browser remembers.
"use strict";
(function () {
  const dialog = document.getElementById("shortcuts");
  const box = document.getElementById("shortcuts-on");
  const STORED = "tandem.shortcuts";
  const follow = (rel) => () => { const link = document.querySelector(`main a[rel~="${rel}"]`); if (link) link.click(); };
  const first = (selector) => () => { const field = document.querySelector(selector); if (field) field.focus(); };
  const ACTIONS = { // their meanings stand in rendering.py
    j: follow("next"),
    k: follow("prev"),
    u: follow("up"),
    "/": first("main input:not([type=hidden]), main select"),
    n: first("#note-text"),
    "?": () => dialog.showModal(),
  };
  let on = true;
  try { on = localStorage.getItem(STORED) !== "off"; } catch (error) { on = true; } // a browser that stores nothing
  box.checked = on;
  box.addEventListener("change", () => {
    on = box.checked;
    try { localStorage.setItem(STORED, on ? "on" : "off"); } catch (error) { return; }
  });
  document.getElementById("show-shortcuts").addEventListener("click", () => dialog.showModal());
  // A script may have changed the address since the page was made: smoothing, the x axis.
  const view = document.getElementById("save-view");
  if (view) view.addEventListener("submit", () => {
    const { base } = view.elements.path.dataset;
    if (location.pathname.startsWith(base)) view.elements.path.value = location.pathname.slice(base.length) + location.search;
  });
  document.addEventListener("keydown", (event) => {
    if (!on || dialog.open || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea, [contenteditable]")) return;
    if (!Object.hasOwn(ACTIONS, event.key)) return;
    event.preventDefault();
    ACTIONS[event.key]();
  });
})();
