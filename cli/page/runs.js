// SPDX-License-Identifier: Apache-2.0
// The state of the page, and the data of its runs: asks the server for news of each run once a second.

const MAX_POINTS = 1500;
const MAX_TIP_LINES = 12;
const STALE_SECONDS = 5;

const token = new URLSearchParams(location.search).get('token') || '';
const panelList = JSON.parse(document.getElementById('panel-list').textContent);
const byId = new Map(panelList.map(panel => [panel.id, panel]));
const view = {span: 0, axis: 'x', layout: 'over', paused: false, theme: 'auto', hover: null};
const runs = [];
let panels = [];
let colors = {};
let drawing = false;

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === 'class') element.className = value;
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

// Touches the document only if the text differs.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function remember(name, value) {
  try {
    localStorage.setItem(`ballast-${name}`, value);
  } catch (error) {
    /* Storage is switched off. */
  }
}

function recall(name) {
  try {
    return localStorage.getItem(`ballast-${name}`);
  } catch (error) {
    return null;
  }
}

const capital = text => text.charAt(0).toUpperCase() + text.slice(1);
const count = number => Number(number).toLocaleString('en-US');
const shortName = run => run.name.replace(/\/+$/, '').split('/').pop();

function keyOf(series, legend) {
  return `${series}|${legend}`;
}

function lineOf(run, panel, series, legend) {
  let lines = run.lines.get(panel);
  if (!lines) run.lines.set(panel, (lines = new Map()));
  const key = keyOf(series, legend);
  let line = lines.get(key);
  if (!line) lines.set(key, (line = {series, legend, t: [], low: [], high: [], x: []}));
  return line;
}

// Halves a line that has become long; each point keeps its extremes.
function thin(line) {
  if (line.t.length <= MAX_POINTS) return;
  const half = line.t.length >> 1;
  for (let i = 0; i < half; ++i) {
    line.t[i] = line.t[2 * i + 1];
    line.x[i] = line.x[2 * i + 1];
    line.low[i] = Math.min(line.low[2 * i], line.low[2 * i + 1]);
    line.high[i] = Math.max(line.high[2 * i], line.high[2 * i + 1]);
  }
  for (const field of ['t', 'x', 'low', 'high']) line[field].length = half;
}

function addBuckets(run, [panel, series, legend, [times, lows, highs, xs]]) {
  if (!byId.has(panel)) return;
  const line = lineOf(run, panel, series, legend);
  for (let i = 0; i < times.length; ++i) {
    line.t.push(times[i] - run.head.started);
    line.low.push(lows[i]);
    line.high.push(highs[i]);
    line.x.push(xs[i]);
  }
  thin(line);
}

function setLast(run, figures) {
  run.last = new Map();
  for (const [panel, series, values] of figures) run.last.set(`${panel}|${series}`, values);
}

function loadHistory(run, history) {
  Object.assign(run, {epoch: history.epoch, tick: history.tick, head: history.head, lines: new Map(), loaded: true});
  for (const line of history.lines) addBuckets(run, line);
  setLast(run, history.last);
}

function isLine(panel, series) {
  const spec = byId.get(panel).series[series];
  const kind = spec.kind || byId.get(panel).kind;
  return kind === 'line' || kind === 'stacked';
}

function addTick(run, tick) {
  run.tick = tick.tick;
  run.head = tick.head;
  run.heard = performance.now();
  const at = tick.head.updated - tick.head.started;
  for (const [panel, series, values] of tick.last) {
    if (!byId.has(panel) || !isLine(panel, series)) continue;
    for (const [legend, value] of values) {
      const line = lineOf(run, panel, series, legend);
      line.t.push(at);
      line.low.push(value);
      line.high.push(value);
      line.x.push(tick.head.examples);
      thin(line);
    }
  }
  for (const line of tick.more) addBuckets(run, line);
  if (tick.last.length > 0) setLast(run, tick.last);
}

async function get(path) {
  const response = await fetch(path, {
    headers: {Authorization: `Bearer ${token}`},
    cache: 'no-store',
    signal: AbortSignal.timeout(8000)
  });
  if (!response.ok) throw new Error(`${response.status}: ${(await response.text()).trim()}`);
  return response.json();
}

async function poll(run) {
  try {
    const news = run.loaded ? await get(`/news?run=${run.id}&epoch=${run.epoch}&tick=${run.tick}`) : {reset: true};
    if (news.reset) {
      loadHistory(run, await get(`/history?run=${run.id}`));
      run.heard = performance.now();
    } else {
      for (const tick of news.ticks) addTick(run, tick);
    }
    run.answered = performance.now();
    run.failure = '';
  } catch (error) {
    run.failure = error.name === 'TimeoutError' ? 'no answer within 8 s' : error.message;
  }
  if (!view.paused) refresh();
  showBanner();
  setTimeout(() => poll(run), document.hidden ? 5000 : 1000);
}
