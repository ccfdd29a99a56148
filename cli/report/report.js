// SPDX-License-Identifier: Apache-2.0
// Shows values under the pointer and toggles series with the legend's buttons. The page is complete without it.
"use strict";
const SVG = "http://www.w3.org/2000/svg";

function shown(value, percent) {
  if (percent) return (value * 100).toFixed(2) + "%";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

function row(name, value, color) {
  const line = document.createElement("div");
  const label = line.appendChild(document.createElement("span"));
  if (color) {
    label.appendChild(document.createElement("i")).className = "swatch c" + color;
  } else {
    line.className = "at";
  }
  label.append(name);
  line.appendChild(document.createElement("b")).textContent = value;
  return line;
}

// Returns the point nearest to x; points are in ascending order of x.
function nearest(points, x) {
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle; else high = middle;
  }
  return x - points[low][0] < points[high][0] - x ? points[low] : points[high];
}

for (const figure of document.querySelectorAll(".chart")) {
  const source = figure.querySelector("script");
  if (!source) continue;
  const chart = JSON.parse(source.textContent);
  const plot = figure.querySelector(".plot");
  const frame = figure.querySelector(".frame");
  const tip = figure.querySelector(".tip");
  const hidden = new Set();
  const marks = frame.appendChild(document.createElementNS(SVG, "g"));

  const across = (x) => 100 * (x - chart.x[0]) / (chart.x[1] - chart.x[0]) + "%";
  const down = (y) => {
    const [low, high] = chart.log ? chart.y.map(Math.log) : chart.y;
    return 100 * (1 - ((chart.log ? Math.log(y) : y) - low) / (high - low)) + "%";
  };
  const mark = (kind, attributes) => {
    const element = marks.appendChild(document.createElementNS(SVG, kind));
    for (const name in attributes) element.setAttribute(name, attributes[name]);
  };
  const clear = () => {
    marks.replaceChildren();
    tip.hidden = true;
  };

  plot.addEventListener("pointerleave", clear);
  plot.addEventListener("pointermove", (event) => {
    clear();
    const box = frame.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const wanted = chart.x[0] + share * (chart.x[1] - chart.x[0]);
    const visible = chart.series.filter((s) => s.points.length && !hidden.has(s.color));
    if (!visible.length) return;
    const hits = visible.map((s) => nearest(s.points, wanted));
    const closest = hits.reduce((a, b) => Math.abs(b[0] - wanted) < Math.abs(a[0] - wanted) ? b : a);
    // Skip a series whose nearest point is far from the pointer.
    const reach = (chart.x[1] - chart.x[0]) / 25;
    mark("line", {class: "cross", x1: across(closest[0]), x2: across(closest[0]), y1: 0, y2: "100%"});
    tip.replaceChildren(row(chart.xLabel, shown(closest[0], false)));
    visible.forEach((s, i) => {
      if (hits[i] !== closest && Math.abs(hits[i][0] - closest[0]) > reach) return;
      if (!s.faint) mark("circle", {class: "dot c" + s.color, cx: across(hits[i][0]), cy: down(hits[i][1]), r: 4.5});
      tip.append(row(s.name, shown(hits[i][1], chart.percent), s.color));
    });
    tip.hidden = false;
    const outer = plot.getBoundingClientRect();
    const at = box.left - outer.left + parseFloat(across(closest[0])) / 100 * box.width;
    const left = at + 14 + tip.offsetWidth > outer.width ? at - 14 - tip.offsetWidth : at + 14;
    // Place the tip above or below so that it does not cover the last series, which is drawn on top.
    const high = parseFloat(down(hits[hits.length - 1][1])) < 50;
    tip.style.top = high ? "auto" : "4px";
    tip.style.bottom = high ? "52px" : "auto";
    tip.style.left = Math.max(0, left) + "px";
  });

  for (const button of figure.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const color = Number(button.dataset.color);
      const on = hidden.delete(color);
      if (!on) hidden.add(color);
      button.setAttribute("aria-pressed", String(on));
      for (const drawn of frame.querySelectorAll(".c" + color)) drawn.style.display = on ? "" : "none";
    });
  }
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
