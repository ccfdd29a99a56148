// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them, and charts on a canvas. Knows neither runs nor the server.
'use strict';

const BINARY = ['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi'];
const DECIMAL = [
  [1e12, 'T'],
  [1e9, 'G'],
  [1e6, 'M'],
  [1e3, 'k']
];

function digits(value, count) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(Math.max(0, count - 1)).replace('e+', 'e');
  return Number(value.toPrecision(count)).toLocaleString('en-US', {maximumFractionDigits: 8});
}

function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds)),
    h = Math.floor(whole / 3600),
    m = Math.floor(whole / 60) % 60;
  const two = number => String(number).padStart(2, '0');
  return h > 0 ? `${h}:${two(m)}:${two(whole % 60)}` : `${m}:${two(whole % 60)}`;
}

// How all numbers up to `largest` are written on one axis: divided by `by`, with `suffix`.
function scaleOf(unit, largest) {
  const size = Math.abs(largest);
  if (unit.startsWith('bytes')) {
    const power = size < 1 ? 0 : Math.min(BINARY.length - 1, Math.floor(Math.log2(size) / 10));
    return {by: 2 ** (10 * power), suffix: ` ${BINARY[power]}B${unit.slice(5)}`};
  }
  if (unit === 's') {
    if (size >= 7200) return {by: 3600, suffix: ' h'};
    if (size >= 180) return {by: 60, suffix: ' min'};
    if (size >= 1 || size === 0) return {by: 1, suffix: ' s'};
    return size >= 1e-3 ? {by: 1e-3, suffix: ' ms'} : {by: 1e-6, suffix: ' µs'};
  }
  if (unit === 'ratio') return {by: 0.01, suffix: '%'};
  if (unit === 'times') return {by: 1, suffix: '×'};
  if (unit === '' && size < 1000) return {by: 1, suffix: ''};
  for (const [by, letter] of DECIMAL) if (size >= by) return {by, suffix: letter};
  return {by: 1, suffix: ''};
}

function format(value, unit) {
  if (value === null || value === undefined || !isFinite(value)) return '–';
  if (unit === 'yes or no') return value >= 1 ? 'yes' : 'no';
  const {by, suffix} = scaleOf(unit, value);
  const scaled = value / by;
  const text = digits(scaled, unit === '' || unit === 's' ? 4 : Math.abs(scaled) >= 100 ? 4 : 3) + suffix;
  const named = ['', 'ratio', 'times', 's', 'bytes', 'bytes/s'].includes(unit);
  return named ? text : unit === '1/s' ? `${text}/s` : `${text} ${unit}`;
}

// Round numbers from low to high, about `wanted` of them.
function ticksOf(low, high, wanted, binary) {
  const raw = (high - low) / Math.max(1, wanted);
  const base = 10 ** Math.floor(Math.log10(raw));
  const factors = binary ? [1, 2, 4, 5, 8, 10] : [1, 2, 2.5, 5, 10];
  const step = base * factors.find(factor => factor * base >= raw * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step);
  return ticks;
}

function clockTicks(low, high, wanted) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
  const raw = (high - low) / Math.max(1, wanted);
  const step = steps.find(each => each >= raw) || Math.ceil(raw / 86400) * 86400;
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high; ++i) ticks.push(i * step);
  return ticks;
}

// First index whose value is not below `value`.
function lowerBound(sorted, value) {
  let low = 0,
    high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Points further apart than this are not joined: the process did not answer in between.
function gapOf(xs) {
  if (xs.length < 3) return Infinity;
  const middle = Math.floor(xs.length / 2);
  const usual = Math.max(xs[middle] - xs[middle - 1], (xs[xs.length - 1] - xs[0]) / (xs.length - 1));
  return Math.max(8, 4 * usual);
}

const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

// Draws a frame with axes, and returns the mapping from numbers to pixels.
function frame(g, box, colors, x, y, unit, binary) {
  g.font = FONT;
  const {by, suffix} = scaleOf(unit, Math.max(Math.abs(y.low), Math.abs(y.high)));
  const ticks = ticksOf(y.low / by, y.high / by, Math.max(2, Math.floor(box.height / 42)), binary);
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
  const decimals =
    [0, 1, 2, 3, 4, 5].find(
      count => Math.abs(step * 10 ** count - Math.round(step * 10 ** count)) < 1e-6 * step * 10 ** count
    ) ?? 6;
  const labels = ticks.map(tick =>
    Math.abs(tick) < step / 1e6 ? '0' : tick.toLocaleString('en-US', {maximumFractionDigits: decimals}) + suffix
  );
  const left = box.left + Math.max(22, ...labels.map(label => g.measureText(label).width)) + 7;
  const area = {left, right: box.left + box.width - 8, top: box.top + 7, bottom: box.top + box.height - 18};
  const toX = value => area.left + ((value - x.low) / (x.high - x.low || 1)) * (area.right - area.left);
  const toY = value => area.bottom - ((value - y.low) / (y.high - y.low || 1)) * (area.bottom - area.top);
  g.lineWidth = 1;
  g.textBaseline = 'middle';
  g.textAlign = 'right';
  ticks.forEach((tick, i) => {
    const at = Math.round(toY(tick * by)) + 0.5;
    g.strokeStyle = labels[i] === '0' ? colors.line : colors.grid;
    g.beginPath();
    g.moveTo(area.left, at);
    g.lineTo(area.right, at);
    g.stroke();
    g.fillStyle = colors.soft;
    g.fillText(labels[i], area.left - 6, at);
  });
  g.textBaseline = 'alphabetic';
  g.textAlign = 'center';
  const places = Math.max(2, Math.floor((area.right - area.left) / 78));
  const xScale = scaleOf('', Math.max(x.high, 1));
  const marks = x.time ? clockTicks(x.low, x.high, places) : ticksOf(x.low, x.high, places, false);
  for (const mark of marks) {
    const text = x.time ? clock(mark) : mark === 0 ? '0' : digits(mark / xScale.by, 4) + xScale.suffix;
    const half = g.measureText(text).width / 2;
    const at = Math.min(Math.max(toX(mark), area.left + half - 4), box.left + box.width - half - 1);
    g.fillText(text, at, box.top + box.height - 4);
  }
  return {area, toX, toY};
}

function rangeOf(lines, x, fromZero, xKey) {
  let low = Infinity,
    high = -Infinity;
  for (const line of lines) {
    const xs = line[xKey];
    for (let i = lowerBound(xs, x.low); i < xs.length && xs[i] <= x.high; ++i) {
      if (line.low[i] !== null && line.low[i] < low) low = line.low[i];
      if (line.high[i] !== null && line.high[i] > high) high = line.high[i];
    }
  }
  if (low > high) return {low: 0, high: 1};
  if (fromZero) low = Math.min(0, low);
  if (high === low)
    return low === 0
      ? {low: 0, high: 1}
      : fromZero
        ? {low, high: high * 1.25}
        : {low: low - Math.abs(low) * 0.1, high: high + Math.abs(high) * 0.1};
  const room = (high - low) * 0.08;
  return {low: fromZero && low === 0 ? 0 : low - room, high: high + room};
}

function drawLine(g, plot, line, xKey, color, width, dash) {
  const {toX, toY, area} = plot,
    xs = line[xKey],
    gap = xKey === 't' ? gapOf(xs) : Infinity;
  g.strokeStyle = color;
  g.lineWidth = width;
  g.lineJoin = 'round';
  g.setLineDash(dash || []);
  g.beginPath();
  let before = -Infinity,
    points = 0,
    lastX = 0,
    lastY = 0;
  for (let i = Math.max(0, lowerBound(xs, plot.low) - 1); i < xs.length && xs[i] <= plot.high; ++i) {
    if (line.low[i] === null) {
      before = -Infinity;
      continue;
    }
    const px = toX(xs[i]),
      low = toY(line.low[i]),
      high = toY(line.high[i]);
    if (xs[i] - before > gap || before === -Infinity) g.moveTo(px, low);
    else g.lineTo(px, low);
    if (high !== low) g.lineTo(px, high);
    before = xs[i];
    ++points;
    lastX = px;
    lastY = high;
  }
  g.stroke();
  g.setLineDash([]);
  // Few points are hard to see as a line.
  if (points > 0 && points < 4 && lastX >= area.left - 1) {
    g.fillStyle = color;
    g.beginPath();
    g.arc(lastX, lastY, 3, 0, 7);
    g.fill();
  }
}

// Draws lines over time or examples. Returns the plot, for the pointer.
function drawLines(g, box, model, colors) {
  const x = model.x;
  const y = model.y || rangeOf(model.lines, x, model.fromZero, model.xKey);
  const plot = frame(g, box, colors, x, y, model.unit, model.unit.startsWith('bytes'));
  Object.assign(plot, {low: x.low, high: x.high});
  g.save();
  g.beginPath();
  g.rect(plot.area.left - 1, box.top, plot.area.right - plot.area.left + 3, box.height - 16);
  g.clip();
  for (const line of model.lines) {
    drawLine(g, plot, line, model.xKey, line.color, line.bright ? 2.4 : 1.6, line.dash);
  }
  g.restore();
  return plot;
}

// The lines' values at the times of the longest one, each above those before.
function stackOf(lines) {
  const base = lines.reduce((longest, line) => (line.t.length > longest.t.length ? line : longest), lines[0]);
  const sums = new Float64Array(base.t.length);
  return lines.map(line => {
    const gap = gapOf(line.t);
    const low = new Float64Array(base.t.length),
      high = new Float64Array(base.t.length);
    let at = 0;
    for (let i = 0; i < base.t.length; ++i) {
      while (at + 1 < line.t.length && line.t[at + 1] <= base.t[i]) ++at;
      const near = line.t.length > 0 && Math.abs(line.t[at] - base.t[i]) <= gap;
      low[i] = sums[i];
      sums[i] += near ? (line.low[at] + line.high[at]) / 2 : 0;
      high[i] = sums[i];
    }
    return {t: base.t, low, high};
  });
}

function drawStacked(g, box, model, colors) {
  const bands = stackOf(model.lines);
  const top = bands[bands.length - 1];
  const y = model.unit === 'ratio' ? {low: 0, high: 1} : rangeOf([top], model.x, true, 't');
  const plot = frame(g, box, colors, model.x, y, model.unit, model.unit.startsWith('bytes'));
  g.save();
  g.beginPath();
  g.rect(plot.area.left, box.top, plot.area.right - plot.area.left + 1, box.height - 17);
  g.clip();
  bands.forEach((band, k) => {
    const from = Math.max(0, lowerBound(band.t, model.x.low) - 1);
    g.beginPath();
    for (let i = from; i < band.t.length; ++i) {
      const px = plot.toX(band.t[i]);
      if (i === from) g.moveTo(px, plot.toY(band.high[i]));
      else g.lineTo(px, plot.toY(band.high[i]));
    }
    g.strokeStyle = model.lines[k].color;
    g.lineWidth = 1.2;
    g.stroke();
    for (let i = band.t.length - 1; i >= from; --i) g.lineTo(plot.toX(band.t[i]), plot.toY(band.low[i]));
    g.closePath();
    g.globalAlpha = model.lines[k].bright ? 0.85 : 0.62;
    g.fillStyle = model.lines[k].color;
    g.fill();
    g.globalAlpha = 1;
  });
  g.restore();
  return plot;
}

// Draws horizontal bars with names and numbers. Returns the rows, for the pointer.
function drawBars(g, box, bars, unit, colors) {
  g.font = FONT;
  const row = Math.max(15, Math.min(26, box.height / bars.length));
  const shown = bars.slice(0, Math.max(1, Math.floor(box.height / row)));
  const largest = Math.max(...bars.map(bar => bar.value), 1e-12);
  const nameWidth = Math.min(box.width * 0.42, Math.max(...shown.map(bar => g.measureText(bar.name).width))) + 8;
  const numberWidth = Math.max(...shown.map(bar => g.measureText(format(bar.value, unit)).width)) + 10;
  const left = box.left + nameWidth,
    width = Math.max(10, box.width - nameWidth - numberWidth);
  g.textBaseline = 'middle';
  shown.forEach((bar, i) => {
    const middle = box.top + (i + 0.5) * row,
      height = Math.max(5, row * 0.56);
    g.fillStyle = colors.soft;
    g.textAlign = 'right';
    g.fillText(bar.name, left - 8, middle, nameWidth - 8);
    g.fillStyle = colors.grid;
    g.fillRect(left, middle - height / 2, width, height);
    g.fillStyle = bar.color;
    g.fillRect(left, middle - height / 2, Math.max(1, (width * Math.max(0, bar.value)) / largest), height);
    g.fillStyle = colors.text;
    g.textAlign = 'left';
    g.fillText(format(bar.value, unit), left + width + 6, middle);
  });
  if (shown.length < bars.length) {
    g.fillStyle = colors.soft;
    g.textAlign = 'right';
    g.fillText(
      `+${bars.length - shown.length} more in the table`,
      box.left + box.width - 2,
      box.top + box.height - 6
    );
  }
}

// Draws the counts of buckets as columns. Groups of several runs stand side by side.
function drawHistogram(g, box, groups, colors) {
  const names = groups.reduce(
    (longest, group) => (group.buckets.length > longest.length ? group.buckets.map(([name]) => name) : longest),
    []
  );
  const largest = Math.max(1, ...groups.flatMap(group => group.buckets.map(([, count]) => count)));
  const plot = frame(
    g,
    box,
    colors,
    {low: 0, high: 1, time: false, hidden: true},
    {low: 0, high: largest * 1.1},
    'count',
    false
  );
  const {area} = plot;
  g.fillStyle = colors.card;
  g.fillRect(box.left, area.bottom + 1, box.width, 18);
  const column = (area.right - area.left) / Math.max(1, names.length);
  g.textBaseline = 'alphabetic';
  names.forEach((name, i) => {
    groups.forEach((group, k) => {
      const count = group.buckets[i] ? group.buckets[i][1] : 0;
      const width = (column * 0.76) / groups.length;
      const top = plot.toY(count);
      g.fillStyle = group.color;
      g.fillRect(area.left + column * i + column * 0.12 + k * width, top, Math.max(1, width - 1), area.bottom - top);
    });
    g.fillStyle = colors.soft;
    g.textAlign = 'center';
    g.fillText(name, area.left + column * (i + 0.5), box.top + box.height - 4, column - 2);
  });
  return plot;
}
