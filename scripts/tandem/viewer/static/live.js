// Keeps the open page of a run that goes on current. Asks for the page at main's data-live every data-poll seconds while the tab is
// seen, and replaces the regions that differ: every [data-region], or all of main where there is none. What a person is using (a
// field, a selected text) stays until it is left; open details, focus and scroll positions are kept.
"use strict";
(function () {
  const main = document.getElementById("content");
  if (!main || !main.dataset.live) return;
  const notice = document.getElementById("stale");
  const parser = new DOMParser();
  const regionsOf = (root) => {
    const named = [...root.querySelectorAll("[data-region]")];
    return named.length ? named : [root];
  };
  const name = (region) => region.dataset.region || "";
  const current = new Map(regionsOf(main).map((region) => [name(region), region.innerHTML]));
  let tag = null; // of the newest answer
  let asking = false;
  let next = null; // what to ask for once the answer is there

  function inUse(region) {
    const selection = getSelection();
    if (selection && !selection.isCollapsed && region.contains(selection.anchorNode)) return true;
    const focus = document.activeElement;
    if (region.contains(focus) && focus.matches("input, select, textarea")) return true;
    return [...region.querySelectorAll("textarea, input:not([type=hidden])")].some((field) => field.value !== field.defaultValue);
  }

  const place = (element, all) => [...all].indexOf(element);

  function replace(region, newer) {
    const open = [...region.querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...region.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
    const reachable = "a[href], button, summary, [tabindex]";
    const focus = region.contains(document.activeElement) && region !== document.activeElement ? document.activeElement : null;
    const link = focus && focus.getAttribute("href");
    const index = focus ? place(focus, region.querySelectorAll(reachable)) : -1;
    region.innerHTML = newer.innerHTML;
    region.querySelectorAll("details").forEach((one, n) => { if (n < open.length) one.open = open[n]; });
    region.querySelectorAll(".scroll").forEach((one, n) => { if (n < scrolled.length) [one.scrollLeft, one.scrollTop] = scrolled[n]; });
    if (index < 0) return;
    const candidates = [...region.querySelectorAll(reachable)];
    const same = link == null ? candidates[index] : candidates.find((one) => one.getAttribute("href") === link) || candidates[index];
    if (same) same.focus({ preventScroll: true });
  }

  // Cards of charts that have their first value.
  function addCharts(page) {
    const grid = main.querySelector("#charts .grid");
    const cards = grid ? [...page.querySelectorAll("[data-card]")].filter((card) => !grid.querySelector(`[data-card="${card.dataset.card}"]`)) : [];
    for (const card of cards) {
      for (const region of card.querySelectorAll("[data-region]")) current.set(name(region), region.innerHTML);
      grid.append(document.importNode(card, true));
    }
    if (cards.length) dispatchEvent(new Event("tandem:charts"));
  }

  function show(text) {
    const page = parser.parseFromString(text, "text/html").getElementById("content");
    const newer = new Map(regionsOf(page).map((region) => [name(region), region]));
    addCharts(page);
    let waiting = false;
    for (const region of regionsOf(main)) {
      const found = newer.get(name(region));
      if (!found || current.get(name(region)) === found.innerHTML) continue;
      if (inUse(region)) { waiting = true; continue; }
      replace(region, found);
      current.set(name(region), found.innerHTML);
    }
    main.dataset.poll = page.dataset.poll || "0"; // 0: the run is over
    main.dataset.shown = String(Number(main.dataset.shown || "0") + 1);
    return !waiting;
  }

  function reachable(yes) {
    if (yes) notice.hidden = true;
    else if (notice.hidden) {
      notice.textContent = `The viewer does not answer: this page shows what was there at ${new Date().toISOString().slice(11, 19)} UTC.`;
      notice.hidden = false;
    }
  }

  async function refresh(source) {
    if (asking) {
      next = source || next; // a step was trained meanwhile: its tables are asked for next
      return;
    }
    asking = true;
    try {
      const headers = tag && !source ? { "if-none-match": tag } : {};
      const answer = await fetch(source || main.dataset.live, { headers, cache: "no-store" });
      reachable(answer.status < 500);
      if (answer.status === 200 && show(await answer.text()) && !source) tag = answer.headers.get("etag");
    } catch (error) {
      reachable(false);
    } finally {
      asking = false;
    }
    if (next) {
      const waiting = next;
      next = null;
      await refresh(waiting);
    }
  }

  function tick() {
    const seconds = Number(main.dataset.poll);
    if (!seconds) return;
    setTimeout(() => (document.hidden ? Promise.resolve() : refresh()).then(tick), 1000 * seconds);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden && Number(main.dataset.poll)) refresh(); });
  // charts.js: a step was trained, so the tables of figures and the alarms by step are old, too, and a chart may be new.
  addEventListener("tandem:step", () => refresh(location.href));
  tick();
})();
