// Draws the curves of a page: every [data-chart] from the JSON at data-source. Asks again every data-poll seconds while the page is seen.
"use strict";
(function () {
  const root = document.getElementById("charts");
  if (!root) return;
  const drawn = new Map();
  let tag = null; // of the newest answer
  let found = null;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (v) => (v == null ? "–" : Math.abs(v) >= 1000 ? v.toLocaleString("en", { maximumFractionDigits: 0 }) : Number(v.toPrecision(4)).toString());

  function shape(chart) {
    const data = [chart.steps];
    const series = [{ label: "step" }];
    const bands = [];
    chart.series.forEach((one, n) => {
      const stroke = colour("--s" + ((n % 8) + 1));
      data.push(one.values);
      series.push({ label: one.label, stroke, width: 2, spanGaps: true, points: { show: chart.steps.length < 3, size: 6, fill: stroke }, value: (u, v) => short(v) });
      if (chart.key === "held_out") series[series.length - 1].points = { show: true, size: 7, fill: stroke };
      if (one.low.length && n === 0) {
        data.push(one.high, one.low);
        series.push({ label: "95 % high", stroke: "transparent", points: { show: false }, class: "band" }, { label: "95 % low", stroke: "transparent", points: { show: false }, class: "band" });
        bands.push({ series: [data.length - 2, data.length - 1], fill: stroke + "2e" });
      }
    });
    return { data, series, bands };
  }

  function draw(place, chart) {
    const { data, series, bands } = shape(chart);
    const key = chart.series.map((one) => one.label).join("|") + dark.matches;
    const before = drawn.get(place);
    if (before && before.key === key) {
      before.plot.setData(data);
      return;
    }
    if (before) before.plot.destroy();
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const options = {
      width: Math.max(260, place.clientWidth), height: 210, series, bands,
      scales: { x: { time: false } },
      axes: [axis, { ...axis, size: 68, values: (u, ticks) => ticks.map(short) }],
      legend: { live: true }, cursor: { points: { size: 8 } },
    };
    const plot = new uPlot(options, data, place);
    for (const row of place.querySelectorAll(".u-legend .band")) row.hidden = true;
    drawn.set(place, { plot, key });
    if (place.dataset.open && chart.key !== "held_out") {
      place.classList.add("opens");
      plot.over.addEventListener("click", () => {
        const at = plot.cursor.idx;
        if (at != null) location.href = place.dataset.open + plot.data[0][at];
      });
    }
  }

  async function refresh() {
    const headers = { accept: "application/json" };
    if (tag) headers["if-none-match"] = tag;
    const answer = await fetch(root.dataset.source, { headers, cache: "no-store" });
    if (!answer.ok) return; // 304: nothing is new
    tag = answer.headers.get("etag");
    found = await answer.json();
    show();
  }

  function show() {
    if (!found) return;
    for (const chart of found.charts) {
      const place = root.querySelector(`[data-chart="${chart.key}"]`);
      if (place) draw(place, chart);
    }
    root.dataset.drawn = String(drawn.size);
    if (found.row && "step" in found.row) {
      const step = document.querySelector("#tiles dd");
      if (step && found.row.step != null) step.textContent = found.row.step.toLocaleString("en");
    }
    if (found.poll_s === 0) root.dataset.poll = "0";
  }

  function tick() {
    const seconds = Number(root.dataset.poll);
    if (!seconds) return;
    setTimeout(() => (document.hidden ? Promise.resolve() : refresh().catch(() => undefined)).then(tick), 1000 * seconds);
  }

  addEventListener("resize", () => drawn.forEach(({ plot }, place) => plot.setSize({ width: Math.max(260, place.clientWidth), height: 210 })));
  dark.addEventListener("change", show);
  refresh().then(tick);
})();
