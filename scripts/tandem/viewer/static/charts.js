// Draws the curves of a page: every [data-chart] from the JSON at data-source. Asks again every data-poll seconds while the page is seen.
// Smoothing and the x axis are parameters of the page's address (smooth, x), so a link or a saved view has them.
"use strict";
(function () {
  const root = document.getElementById("charts");
  if (!root) return;
  const drawn = new Map();
  // Also after a scroll bar has appeared, which leaves less room and is no resize of the window.
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const plot = drawn.get(target) && drawn.get(target).plot;
      if (plot && plot.width !== width(target)) plot.setSize({ width: width(target), height: HEIGHT });
    }
  });
  let tag = null; // of the newest answer
  let found = null;
  const HEIGHT = 210;
  const WHOLE = [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5, 6, 7].map((power) => n * 10 ** power)).sort((a, b) => a - b);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (v) => (v == null ? "–" : Math.abs(v) >= 1000 ? v.toLocaleString("en", { maximumFractionDigits: 0 }) : Number(v.toPrecision(4)).toString());
  const width = (place) => Math.max(220, place.clientWidth);

  // ---------------------------------------------------------------- choices, in the address

  const controls = { smooth: document.getElementById("smooth"), x: document.getElementById("x-axis") };
  const address = () => new URLSearchParams(location.search);
  const choices = () => ({
    smooth: Math.min(0.99, Math.max(0, Number(address().get("smooth")) || 0)),
    x: ["hours", "clock"].includes(address().get("x")) ? address().get("x") : "step",
  });

  // Of two runs, the server joins the points: by step, or by hours.
  const byServer = root.dataset.axes === "server";
  const source = () => root.dataset.source + (byServer ? "&x=" + choices().x : "");

  function choose(name, value, usual) {
    const parameters = address();
    if (value === usual) parameters.delete(name);
    else parameters.set(name, value);
    const query = parameters.toString();
    history.replaceState(null, "", location.pathname + (query ? "?" + query : "") + location.hash);
    if (name === "x" && byServer) refresh();
    else show();
  }

  function prepareControls() {
    const chosen = choices();
    controls.smooth.value = String(chosen.smooth);
    controls.x.value = chosen.x;
    controls.smooth.addEventListener("input", () => choose("smooth", controls.smooth.value, "0"));
    controls.x.addEventListener("change", () => choose("x", controls.x.value, "step"));
  }

  // ---------------------------------------------------------------- values

  // Exponential moving average with the correction for its start, as TensorBoard and W&B draw it.
  function smoothed(values, weight) {
    let mean = 0;
    let total = 0;
    return values.map((value) => {
      if (value == null) return null;
      mean = weight * mean + (1 - weight) * value;
      total = weight * total + (1 - weight);
      return mean / total;
    });
  }

  // {x, times}: the x values of a chart in the chosen unit, and the order of its points by them. Points without a time are left out.
  function horizontal(chart, unit) {
    const order = chart.steps.map((_, n) => n).filter((n) => unit === "step" || chart.times[n] != null);
    if (unit === "step") return { order, x: chart.steps };
    order.sort((a, b) => chart.times[a] - chart.times[b]);
    const start = unit === "hours" ? Math.min(...order.map((n) => chart.times[n])) : 0;
    const scale = unit === "hours" ? 3600 : 1;
    return { order, x: chart.times.map((time) => (time == null ? null : (time - start) / scale)) };
  }

  // Indices of values without a neighbour, through which no line is drawn.
  const alone = (values) => values.flatMap((value, n) => (value != null && values[n - 1] == null && values[n + 1] == null ? [n] : []));

  function shape(chart, chosen) {
    const { order, x } = horizontal(chart, chosen.x);
    const pick = (values) => order.map((n) => values[n]);
    const data = [pick(x)];
    const series = [{ label: chosen.x === "step" ? "step" : chosen.x === "hours" ? "hours" : "time (UTC)", value: (u, v) => (v == null ? "–" : chosen.x === "clock" ? clock(v) : short(v)) }];
    const bands = [];
    const everyPoint = chart.key === "held_out" || order.length < 3;
    const add = (label, values, stroke, more) => {
      data.push(values);
      series.push({ label, stroke, width: 2, spanGaps: true, value: (u, v) => short(v), points: { show: true, size: everyPoint ? 7 : 6, fill: stroke, filter: () => (everyPoint ? null : alone(values)) }, ...more });
    };
    chart.series.forEach((one, n) => {
      const stroke = colour("--s" + ((n % 8) + 1));
      const values = pick(one.values);
      if (chosen.smooth) {
        add("raw", values, stroke + "55", { class: "aside", width: 1 });
        add(one.label, smoothed(values, chosen.smooth), stroke);
      } else add(one.label, values, stroke);
      if (!one.low.length || n !== 0) return;
      data.push(pick(one.high), pick(one.low));
      for (const label of ["95 % high", "95 % low"]) series.push({ label, stroke: "transparent", points: { show: false }, class: "aside" });
      bands.push({ series: [data.length - 2, data.length - 1], fill: stroke + "2e" });
    });
    return { data, series, bands, order };
  }

  const clock = (seconds) => new Date(1000 * seconds).toISOString().slice(5, 16).replace("T", " ");

  // ---------------------------------------------------------------- drawing

  function xAxis(unit) {
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    if (unit === "step") return { ...axis, incrs: WHOLE, values: (u, ticks) => ticks.map(short) };
    if (unit === "hours") return { ...axis, values: (u, ticks) => ticks.map(short) };
    return axis; // uPlot writes dates
  }

  function optionsOf(place, chart, chosen, { series, bands }) {
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const apart = (u, low, high) => (low === high ? [low - 1, high + 1] : [low, high]); // one point stands in the middle
    return {
      width: width(place), height: HEIGHT, series, bands, tzDate: (seconds) => uPlot.tzDate(new Date(1000 * seconds), "Etc/UTC"),
      scales: { x: { time: chosen.x === "clock", ...(chosen.x === "step" ? { range: apart } : {}) }, y: chart.unit === "share" ? { range: [0, 1] } : {} },
      axes: [xAxis(chosen.x), { ...axis, size: 60, values: (u, ticks) => ticks.map(short) }],
      legend: { live: true }, cursor: { points: { size: 8 } },
    };
  }

  function draw(place, chart) {
    const chosen = choices();
    const made = shape(chart, chosen);
    const key = JSON.stringify([chart.series.map((one) => one.label), dark.matches, chosen]);
    const before = drawn.get(place);
    if (before && before.key === key && before.length < 3 === made.order.length < 3) {
      before.chart = chart;
      before.order = made.order;
      before.plot.setData(made.data);
      return;
    }
    if (before) before.plot.destroy();
    const plot = new uPlot(optionsOf(place, chart, chosen, made), made.data, place);
    const state = { plot, key, chart, order: made.order, length: made.order.length };
    for (const row of place.querySelectorAll(".u-legend .aside")) row.hidden = true;
    drawn.set(place, state);
    sizes.observe(place);
    place.uplot = plot; // for consoles and tests
    opens(place, state);
    keys(place, state);
    legendKeys(place, plot);
  }

  const stepAt = (state, n) => (n == null ? null : state.chart.steps[state.order[n]]);

  function opens(place, state) {
    if (!place.dataset.open || state.chart.key === "held_out") return;
    place.classList.add("opens");
    state.plot.over.addEventListener("click", () => open(place, stepAt(state, state.plot.cursor.idx)));
  }

  function open(place, step) {
    if (step != null) location.href = place.dataset.open + step;
  }

  // ---------------------------------------------------------------- the keyboard

  // The plot is a slider over its points: arrows, Home, End, Page up and down move along; Enter opens the step.
  function keys(place, state) {
    const { plot } = state;
    const over = plot.over;
    const title = document.getElementById("chart-" + state.chart.key).textContent.trim();
    let at = state.order.length - 1;
    const say = () => {
      const parts = plot.series.slice(1).flatMap((one, n) => (one.class === "aside" || !one.show ? [] : [`${one.label} ${short(plot.data[n + 1][at])}`]));
      over.setAttribute("aria-valuemax", String(Math.max(0, state.order.length - 1)));
      over.setAttribute("aria-valuenow", String(Math.max(0, at)));
      over.setAttribute("aria-valuetext", state.order.length ? `step ${stepAt(state, at)}: ${parts.join(", ")}` : "no point");
    };
    over.tabIndex = 0;
    over.setAttribute("role", "slider");
    over.setAttribute("aria-label", title + (place.classList.contains("opens") ? "; Enter opens the step" : ""));
    over.setAttribute("aria-valuemin", "0");
    say();
    over.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const last = state.order.length - 1;
      const moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -last, End: last };
      if (event.key === "Enter" && place.classList.contains("opens")) open(place, stepAt(state, at));
      else if (event.key in moves) {
        at = Math.min(last, Math.max(0, at + moves[event.key]));
        const x = plot.data[0][at];
        if (x != null) plot.setCursor({ left: plot.valToPos(x, "x"), top: HEIGHT / 4 });
        say();
      } else return;
      event.preventDefault();
    });
    over.addEventListener("blur", () => plot.setCursor({ left: -10, top: -10 }));
  }

  function legendKeys(place, plot) {
    place.querySelectorAll(".u-legend .u-series").forEach((row, n) => {
      const label = row.querySelector(".u-label");
      if (n === 0 || !label || row.hidden) return;
      const series = plot.series[n];
      label.tabIndex = 0;
      label.setAttribute("role", "button");
      label.setAttribute("aria-pressed", "true");
      label.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        plot.setSeries(n, { show: !series.show });
      });
      (plot.hooks.setSeries = plot.hooks.setSeries || []).push(() => label.setAttribute("aria-pressed", String(series.show)));
    });
  }

  // ---------------------------------------------------------------- news

  async function refresh() {
    const headers = { accept: "application/json" };
    if (tag) headers["if-none-match"] = tag;
    const answer = await fetch(source(), { headers, cache: "no-store" });
    if (!answer.ok) return; // 304: nothing is new
    const first = tag === null;
    tag = answer.headers.get("etag");
    found = await answer.json();
    if (!first && !byServer) dispatchEvent(new Event("tandem:step"));
    show();
  }

  function show() {
    if (!found) return;
    for (const chart of found.charts) {
      const place = root.querySelector(`[data-chart="${chart.key}"]`);
      if (place) draw(place, chart);
    }
    root.dataset.drawn = String(drawn.size);
    if (found.poll_s === 0) root.dataset.poll = "0";
  }

  function tick() {
    const seconds = Number(root.dataset.poll);
    if (!seconds) return;
    setTimeout(() => (document.hidden ? Promise.resolve() : refresh().catch(() => undefined)).then(tick), 1000 * seconds);
  }

  dark.addEventListener("change", show);
  addEventListener("tandem:charts", show); // live.js: a chart is new
  prepareControls();
  refresh().then(tick);
})();
