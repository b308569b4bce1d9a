"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const percent = (share) => +(100 * share).toPrecision(6) + " %";
  const whom = (share) => (share === 0.5 ? "half" : percent(share)) + " of people";
  // Three digits, never rounded down: the same figures as the library prints.
  const up = (value) => {
    if (value === null) return "no claim";
    if (value === 0) return "0";
    const step = 10 ** (Math.floor(Math.log10(value)) - 2);
    return String(+(Math.ceil((value / step) * (1 - 1e-12)) * step).toPrecision(3));
  };
  const plainNumber = (value) => (value < 1e-4 ? value.toExponential().replace(/e-(\d)$/, "e-0$1") : String(value));
  const line = (name, x, y, style) => ({ name, x, y, mode: "lines+markers", marker: { size: 5 }, customdata: y.map(up), hovertemplate: "%{customdata}", connectgaps: false, ...style });
  const everyone = () => ({ line: { color: colour("everyone"), width: 3 } });
  const sure = (dash) => ({ line: { color: colour("sure"), width: 2, dash } });
  const estimate = (dash) => ({ line: { color: colour("estimate"), width: 2, dash } });
  const DASH = { 0.5: "dot", 0.9: "dash", 0.99: "solid" };
  const axis = (title, more) => ({ title: { text: title }, gridcolor: colour("line"), zerolinecolor: colour("line"), automargin: true, ...more });
  const layout = (x, y, more) => ({
    font: { family: "system-ui, sans-serif", size: 13, color: colour("ink") }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 60, r: 15, t: 10, b: 50 }, hovermode: "x unified", hoverlabel: { bgcolor: colour("card"), font: { color: colour("ink") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, xaxis: x, yaxis: y, ...more });

  let place = data.by_delta ? data.by_delta.deltas.indexOf(data.delta) : -1;
  const charts = {
    shares: () => {
      const { shares, ex_post, estimate: guessed, everyone: worst } = data.shares, x = shares.map((share) => 100 * share);
      return [[line("everyone: the ceiling", [0, 100], [worst, worst], { ...everyone(), mode: "lines" }), line("sure for people not used", x, ex_post, sure("solid")), line("estimate", x, guessed, estimate("solid"))],
        layout(axis("share of people (%)", { range: [0, 100] }), axis("epsilon at most", { rangemode: "tozero" }))];
    },
    training: () => {
      const run = data.over_training;
      const lines = run.shares.map((share, n) => line("sure for " + whom(share) + " not used", run.steps, run.ex_post[n], sure(DASH[share])));
      return [[line("everyone", run.steps, run.everyone, everyone()), ...(run.ex_post[0].length ? lines : [])],
        layout(axis("steps", { rangemode: "tozero" }), axis("epsilon at most", { rangemode: "tozero" }))];
    },
    exposure: () => {
      const run = data.over_training;
      const lines = ["half", "90 %", "99 %"].map((name, n) => line("exposure of " + name + " of people, at most", run.steps, run.exposure[n].map((v) => (v === null ? null : 100 * v)), sure(DASH[[0.5, 0.9, 0.99][n]])));
      lines.push(line("norms that were clipped", run.steps, run.clipped.map((v) => (v === null ? null : 100 * v)), estimate("solid")));
      return [lines, layout(axis("steps", { rangemode: "tozero" }), axis("%", { range: [0, 102] }))];
    },
    delta: () => {
      const table = data.by_delta, lines = [line("everyone", table.deltas, table.everyone, everyone())];
      table.shares.forEach((share, n) => {
        if (share === 0.9) return;
        lines.push(line("sure for " + whom(share) + " not used", table.deltas, table.ex_post[n], sure(DASH[share])));
        lines.push(line("estimate for " + whom(share), table.deltas, table.estimate[n], estimate(DASH[share])));
      });
      const mark = table.deltas[place];
      return [lines, layout(axis("delta", { type: "log", exponentformat: "power" }), axis("epsilon at most", { rangemode: "tozero" }),
        { shapes: [{ type: "line", xref: "x", yref: "paper", x0: mark, x1: mark, y0: 0, y1: 1, line: { color: colour("quiet"), width: 1, dash: "dot" } }] })];
    },
    clip: () => {
      const { bounds, factors, now, everyone: worst, shares, estimates } = data.clip, mark = bounds[now];
      return [[line("everyone", bounds, bounds.map(() => worst), { ...everyone(), mode: "lines" }), ...shares.map((share, n) => line("estimate for " + whom(share), bounds, estimates[n], estimate(DASH[share])))],
        layout(axis(factors ? "clip bound, times that of the run" : "clip bound", { type: "log", tickmode: "array", tickvals: bounds, ticktext: bounds.map((bound) => String(+bound.toPrecision(3))) }), axis("epsilon, about", { rangemode: "tozero" }),
          { shapes: [{ type: "line", xref: "x", yref: "paper", x0: mark, x1: mark, y0: 0, y1: 1, line: { color: colour("quiet"), width: 1, dash: "dot" } }] })];
    },
    groups: () => {
      const names = data.groups.map((group) => (group.name.length > 30 ? group.name.slice(0, 29) + "…" : group.name));
      const at = (what, n) => data.groups.map((group) => group.figures[n][what]);
      const points = (name, y, style, symbol) => ({ name, x: names.map((_, n) => n), y, mode: "markers", marker: { size: 11, color: style, symbol }, customdata: y.map(up), hovertemplate: "%{customdata}" });
      return [[points("sure for half, not used", at("ex_post", 0), colour("sure"), "circle"), points("sure for 90 %, not used", at("ex_post", 1), colour("sure"), "diamond-open"),
        points("estimate for half", at("estimate", 0), colour("estimate"), "circle"), points("estimate for 90 %", at("estimate", 1), colour("estimate"), "diamond-open")],
        layout(axis("", { tickmode: "array", tickvals: names.map((_, n) => n), ticktext: names.map(plain) }), axis("epsilon at most", { rangemode: "tozero" }))];
    },
  };
  // Plotly interprets some tags inside text; escaped, they are shown literally.
  function plain(text) { return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); }

  const shown = Object.keys(charts).filter((name) => document.getElementById("chart-" + name));
  const draw = (name) => Plotly.react("chart-" + name, ...charts[name](), { displayModeBar: false, responsive: true });
  const drawAll = () => shown.forEach(draw);

  function figures() {
    const table = data.by_delta, parts = ["delta = " + plainNumber(table.deltas[place]), "everyone " + up(table.everyone[place])];
    table.shares.forEach((share, n) => {
      const certain = table.ex_post[n][place], guessed = table.estimate[n][place];
      if (certain !== null || guessed !== null) parts.push(whom(share) + ": sure if not used " + up(certain) + ", estimate " + up(guessed));
    });
    document.getElementById("delta-figures").textContent = parts.join("; ");
    document.getElementById("delta-slider").setAttribute("aria-valuetext", "delta " + plainNumber(table.deltas[place]));
  }
  const slider = document.getElementById("delta-slider"), typed = document.getElementById("delta-number");
  function move(to) { place = to; slider.value = String(to); figures(); draw("delta"); }
  if (slider) {
    slider.addEventListener("input", () => { typed.value = plainNumber(data.by_delta.deltas[+slider.value]); move(+slider.value); });
    typed.addEventListener("change", () => {
      // The largest delta in the table that is not above what was typed: the safe side.
      const wanted = Number(typed.value), deltas = data.by_delta.deltas;
      const nearest = wanted > 0 && wanted < 1 ? deltas.findLastIndex((delta) => delta <= wanted * (1 + 1e-9)) : -1;
      typed.setAttribute("aria-invalid", String(nearest < 0));
      if (nearest >= 0) move(nearest); else document.getElementById("delta-figures").textContent = "No figures for this delta; those in the table are from " + deltas[0] + " to " + deltas[deltas.length - 1] + ".";
    });
    document.getElementById("slider-form").addEventListener("submit", (event) => event.preventDefault());
    figures();
  }
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  // Two pages are printed unless all are asked for. Paper is narrow, and nobody can unfold details on it.
  const everything = document.getElementById("print-all");
  const all = () => document.body.classList.toggle("everything", everything.checked);
  if (everything) {
    everything.addEventListener("change", all);
    all(); // browsers remember what was ticked before the page was loaded again
  }
  const folded = [...document.querySelectorAll("details:not([open])")];
  addEventListener("beforeprint", () => {
    folded.forEach((details) => (details.open = true));
    shown.forEach((name) => { draw(name); Plotly.relayout("chart-" + name, { width: 620, height: 250 }); });
  });
  addEventListener("afterprint", () => {
    folded.forEach((details) => (details.open = false));
    shown.forEach((name) => Plotly.relayout("chart-" + name, { width: null, height: null, autosize: true }));
  });
})();
