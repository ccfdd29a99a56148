// SPDX-License-Identifier: Apache-2.0
// The panels with charts: their colors, parts, legends and tables. Draws those in view.

function readColors() {
  const dark = view.theme === 'dark' || (view.theme === 'auto' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.toggleAttribute('data-dark', dark);
  const style = getComputedStyle(document.documentElement);
  for (const name of [
    'text',
    'soft',
    'faint',
    'line',
    'grid',
    'card',
    'c0',
    'c1',
    'c2',
    'c3',
    'c4',
    'c5',
    'c6',
    'c7'
  ]) {
    colors[name] = style.getPropertyValue(`--${name}`).trim();
  }
  document.getElementById('theme').textContent = `Theme: ${view.theme}`;
}

function mixed(color, with_, share) {
  const parts = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
  const a = parts(color),
    b = parts(with_);
  return `rgb(${a.map((value, i) => Math.round(value * (1 - share) + b[i] * share)).join(',')})`;
}

// Of one run, each line has a color; of several, each run, and its lines have shades of it.
function colorOf(run, index) {
  if (runs.length === 1) return colors[`c${index % 8}`];
  const color = colors[`c${run.id % 8}`],
    shade = index % 4;
  return shade === 0
    ? color
    : shade === 1
      ? mixed(color, colors.card, 0.4)
      : shade === 2
        ? mixed(color, colors.text, 0.4)
        : mixed(color, colors.card, 0.65);
}

function dashOf(index) {
  const round = Math.floor(index / (runs.length === 1 ? 8 : 4));
  return round === 0 ? null : round === 1 ? [5, 3] : [2, 2];
}

function buildPanel(spec, number) {
  const panel = {
    spec,
    number,
    charts: [],
    tab: 0,
    chosen: false,
    hidden: new Set(),
    table: false,
    visible: false,
    dirty: true,
    plots: []
  };
  spec.series.forEach((series, index) => {
    const name = series.chart || '';
    let chart = panel.charts.find(each => each.name === name);
    if (!chart)
      panel.charts.push((chart = {name, unit: series.unit ?? spec.unit, kind: series.kind || spec.kind, series: []}));
    chart.series.push(index);
  });
  const tool = (text, title, action, pressed) =>
    make(
      'button',
      {
        type: 'button',
        title,
        'aria-label': `${title}: ${spec.title}`,
        'aria-pressed': pressed ? 'false' : null,
        onclick: action
      },
      text
    );
  panel.unit = make('span', {class: 'unit'});
  panel.help = make('div', {class: 'help', hidden: ''}, spec.help);
  panel.helpButton = tool(
    '?',
    'What this shows',
    () => press(panel.helpButton, !panel.help.toggleAttribute('hidden')),
    true
  );
  panel.tableButton = spec.kind === 'stat' ? null : tool('▤', 'Table', () => toggleTable(panel), true);
  panel.largeButton = spec.kind === 'stat' ? null : tool('⤢', 'Enlarge', () => toggleLarge(panel), true);
  panel.body = spec.kind === 'stat' ? make('div', {class: 'jobs'}) : make('div', {class: 'plot'});
  panel.element = make(
    'section',
    {
      class: spec.kind === 'stat' ? 'panel job' : 'panel',
      id: `panel-${spec.id}`,
      'aria-labelledby': `title-${spec.id}`
    },
    make(
      'div',
      {class: 'title'},
      make('span', {class: 'number', 'aria-hidden': 'true'}, String(number)),
      make('h2', {id: `title-${spec.id}`, title: spec.help}, spec.title),
      panel.unit,
      make('div', {class: 'tools'}, panel.helpButton, panel.tableButton, panel.largeButton)
    ),
    panel.help
  );
  if (spec.kind !== 'stat') {
    panel.canvas = make('canvas', {tabindex: '0', role: 'img', 'aria-label': `${spec.title}. ${spec.help}`});
    panel.cross = make('div', {class: 'cross', hidden: ''});
    panel.emptyText = make('div', {class: 'empty', hidden: ''});
    panel.body.append(panel.canvas, panel.cross, panel.emptyText);
    panel.tabs = make('div', {class: 'tabs', role: 'tablist', 'aria-label': spec.title});
    panel.charts.forEach((chart, index) => {
      chart.button = make(
        'button',
        {
          type: 'button',
          role: 'tab',
          onclick: () => {
            panel.tab = index;
            panel.chosen = true;
            mark(panel);
          }
        },
        capital(chart.name)
      );
      panel.tabs.append(chart.button);
    });
    panel.tabs.hidden = panel.charts.length < 2;
    panel.legend = make('div', {class: 'legend'});
    panel.scroll = make('div', {class: 'scroll', hidden: '', tabindex: '0'});
    panel.element.append(panel.tabs, panel.body, panel.scroll, panel.legend);
    listen(panel);
    new ResizeObserver(() => mark(panel)).observe(panel.body);
  } else {
    panel.element.append(panel.body);
  }
  return panel;
}

function press(button, pressed) {
  button.setAttribute('aria-pressed', String(pressed));
}

function toggleTable(panel) {
  panel.table = !panel.table;
  press(panel.tableButton, panel.table);
  panel.scroll.hidden = !panel.table;
  panel.body.hidden = panel.table;
  panel.legend.hidden = panel.table;
  mark(panel);
}

function toggleLarge(panel) {
  press(panel.largeButton, panel.element.classList.toggle('large'));
  mark(panel);
}

const shownRuns = () => runs.filter(run => run.shown && run.head);

function hasData(panel, chart) {
  return chart.series.some(
    index =>
      !panel.spec.series[index].extra &&
      runs.some(run => {
        if ((run.last.get(`${panel.spec.id}|${index}`) || []).length > 0) return true;
        const lines = run.lines.get(panel.spec.id);
        return lines !== undefined && [...lines.values()].some(line => line.series === index && line.t.length > 0);
      })
  );
}

// The lines of a chart, those of runs that are not shown left out.
function linesOf(panel, chart) {
  const found = [];
  for (const run of shownRuns()) {
    const lines = run.lines.get(panel.spec.id);
    if (!lines) continue;
    const own = [...lines.values()].filter(line => chart.series.includes(line.series) && line.t.length > 0);
    own.sort((a, b) => a.series - b.series || a.legend.localeCompare(b.legend, 'en', {numeric: true}));
    own.forEach((line, index) =>
      found.push({
        ...line,
        run,
        key: `${run.id}|${keyOf(line.series, line.legend)}`,
        color: colorOf(run, index),
        dash: dashOf(index),
        name: runs.length > 1 ? `${shortName(run)} ${line.legend}` : line.legend
      })
    );
  }
  return found;
}

function nowOf(run, panel, line) {
  const values = run.last.get(`${panel.spec.id}|${line.series}`);
  const found = values && values.find(([legend]) => legend === line.legend);
  return found ? found[1] : values && run.head.live ? null : line.high[line.high.length - 1];
}

function barsOf(panel, chart) {
  const bars = [];
  for (const run of shownRuns()) {
    let index = 0;
    for (const series of chart.series) {
      for (const [legend, value] of run.last.get(`${panel.spec.id}|${series}`) || []) {
        bars.push({
          name: runs.length > 1 ? `${shortName(run)} ${legend}` : legend,
          value,
          key: `${run.id}|${keyOf(series, legend)}`,
          color: runs.length > 1 ? colorOf(run, 0) : colors[`c${index++ % 8}`]
        });
      }
    }
  }
  if (panel.spec.id === 'stragglers') bars.sort((a, b) => b.value - a.value);
  return bars;
}

// "2–3" for the bucket up to 3 after the one up to 1.
function bucketsOf(panel, chart, run) {
  let before = -1;
  return chart.series
    .flatMap(series => run.last.get(`${panel.spec.id}|${series}`) || [])
    .map(([bound, value]) => {
      const from = before + 1;
      before = Number(bound);
      return [bound === 'more' ? `≥${from}` : from === before ? bound : `${from}–${bound}`, value];
    });
}

function timeRange(xKey, lines) {
  let end = 0,
    begin = Infinity;
  for (const line of lines) {
    const values = line[xKey];
    end = Math.max(end, values[values.length - 1]);
    begin = Math.min(begin, values[0]);
  }
  if (xKey === 'x') {
    if (view.span > 0 && lines.length > 0) {
      const longest = lines.reduce((a, b) => (b.t.length > a.t.length ? b : a));
      const at = lowerBound(longest.t, longest.t[longest.t.length - 1] - view.span);
      begin = longest.x[Math.min(at, longest.x.length - 1)];
    }
    return {low: begin === Infinity || begin === end ? 0 : begin, high: Math.max(end, 1), time: false};
  }
  for (const run of shownRuns()) if (run.head.live) end = Math.max(end, run.head.updated - run.head.started);
  if (view.span > 0) begin = end - view.span;
  else if (end - begin < 20) begin = end - 20;
  return {low: Math.max(0, Math.min(begin, end)), high: Math.max(end, 1), time: true};
}

function emptyText(panel) {
  const shown = shownRuns();
  if (shown.length === 0) return runs.some(run => run.head) ? 'All runs are hidden.' : 'Loading…';
  const head = shown[0].head;
  if (head.state === 'unreachable') return 'No data: nobody answers.';
  if (head.state === 'unfinished') return 'No launch runs in this directory, and nothing of this was recorded.';
  if (!head.live) return 'The run has ended, and nothing of this was recorded while it ran.';
  if (head.state === 'starting' || head.state === 'gathering') return 'The run is starting.';
  return `No data: ${panel.spec.empty}.`;
}

function drawPanel(panel) {
  if (panel.spec.kind === 'stat') return showJobs(panel);
  const filled = panel.charts.map(chart => hasData(panel, chart));
  panel.charts.forEach((chart, index) => (chart.button.hidden = !filled[index] && filled.some(Boolean)));
  if (!filled[panel.tab] && filled.some(Boolean)) panel.tab = filled.indexOf(true);
  panel.charts.forEach((chart, index) => {
    chart.button.setAttribute('aria-selected', String(index === panel.tab));
    chart.button.tabIndex = index === panel.tab ? 0 : -1;
  });
  panel.tabs.hidden = filled.filter(Boolean).length < 2;
  const chart = panel.charts[panel.tab];
  const any = filled[panel.tab];
  setText(panel.unit, any ? unitText(chart) : '');
  panel.emptyText.hidden = any;
  panel.canvas.hidden = !any;
  if (!any) {
    setText(panel.emptyText, emptyText(panel));
    panel.legend.replaceChildren();
    panel.scroll.replaceChildren();
    panel.plots = [];
    panel.legendKeys = '';
    return;
  }
  const lines = chart.kind === 'line' || chart.kind === 'stacked' ? linesOf(panel, chart) : [];
  if (panel.table) return showTable(panel, chart, lines);
  const g = sized(panel.canvas);
  if (!g) return;
  const box = {left: 0, top: 0, width: panel.canvas.clientWidth, height: panel.canvas.clientHeight};
  if (chart.kind === 'bar') {
    const bars = barsOf(panel, chart);
    panel.plots = [];
    if (bars.length > 0) drawBars(g, {...box, top: 4, height: box.height - 4}, bars, chart.unit, colors);
    return showLegend(panel, chart, []);
  }
  if (chart.kind === 'histogram') {
    const groups = shownRuns()
      .map(run => ({color: colorOf(run, 0), buckets: bucketsOf(panel, chart, run)}))
      .filter(group => group.buckets.length > 0);
    panel.plots = [];
    if (groups.length > 0) drawHistogram(g, box, groups, colors);
    return showLegend(panel, chart, []);
  }
  const visible = lines.filter(line => !panel.hidden.has(line.key));
  const xKey = panel.spec.id === 'loss' ? view.axis : 't';
  const own = shownRuns().filter(run => visible.some(line => line.run === run));
  const apart = own.length > 1 && (chart.kind === 'stacked' || view.layout === 'side');
  const model = {
    x: timeRange(xKey, visible),
    xKey,
    unit: chart.unit,
    fromZero: chart.unit !== '' && chart.name !== 'accuracy',
    lines: visible
  };
  if (visible.length === 0) {
    panel.plots = [];
  } else if (!apart) {
    panel.plots = [draw(g, box, chart, model)];
  } else {
    const y = chart.kind === 'line' ? rangeOf(visible, model.x, model.fromZero, xKey) : null;
    panel.plots = own.map((run, i) => {
      const part = {...box, left: (box.width * i) / own.length, width: box.width / own.length};
      return draw(g, part, chart, {...model, y, lines: visible.filter(line => line.run === run)});
    });
  }
  showLegend(panel, chart, lines);
}

function draw(g, box, chart, model) {
  const plot = chart.kind === 'stacked' ? drawStacked(g, box, model, colors) : drawLines(g, box, model, colors);
  return Object.assign(plot, {box, model, kind: chart.kind});
}

// Returns the canvas's context, cleared, with a pixel of the style as its unit; null if it has no size.
function sized(canvas) {
  const width = canvas.clientWidth,
    height = canvas.clientHeight,
    ratio = Math.min(3, devicePixelRatio || 1);
  if (width < 20 || height < 20) return null;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const g = canvas.getContext('2d');
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

function unitText(chart) {
  const words = {s: 'time', ratio: 'share', '': '', times: 'times'};
  return words[chart.unit] ?? chart.unit;
}

function showLegend(panel, chart, lines) {
  const keys = lines.map(line => line.key + line.color).join('\n');
  if (panel.legendKeys !== keys) {
    panel.legendKeys = keys;
    panel.legendValues = lines.map(() => make('b', {}));
    panel.legend.replaceChildren(
      ...lines.map((line, i) => {
        const swatch = make('i', {});
        swatch.style.background = line.color;
        const button = make(
          'button',
          {type: 'button', title: `Show or hide ${line.name}`, 'aria-pressed': String(!panel.hidden.has(line.key))},
          swatch,
          make('span', {}, line.name),
          panel.legendValues[i]
        );
        button.addEventListener('click', () => {
          if (!panel.hidden.delete(line.key)) panel.hidden.add(line.key);
          press(button, !panel.hidden.has(line.key));
          mark(panel);
        });
        return button;
      })
    );
  }
  lines.forEach((line, i) => setText(panel.legendValues[i], format(nowOf(line.run, panel, line), chart.unit)));
}

function showTable(panel, chart, lines) {
  const cells = (tag, values) => make('tr', {}, ...values.map(value => make(tag, {}, value)));
  let rows, headings;
  if (chart.kind === 'bar') {
    headings = ['', 'now'];
    rows = barsOf(panel, chart).map(bar => [bar.name, format(bar.value, chart.unit)]);
  } else if (chart.kind === 'histogram') {
    headings = [panel.spec.unit, chart.unit];
    rows = shownRuns().flatMap(run =>
      bucketsOf(panel, chart, run).map(([name, value]) => [
        runs.length > 1 ? `${shortName(run)} ${name}` : name,
        format(Math.round(value), 'count')
      ])
    );
  } else {
    headings = ['', 'now', 'lowest', 'highest'];
    const x = timeRange('t', lines);
    rows = lines.map(line => {
      const from = lowerBound(line.t, x.low);
      return [
        line.name,
        format(nowOf(line.run, panel, line), chart.unit),
        format(Math.min(...line.low.slice(from)), chart.unit),
        format(Math.max(...line.high.slice(from)), chart.unit)
      ];
    });
  }
  panel.scroll.replaceChildren(
    make(
      'table',
      {},
      make('thead', {}, cells('th', headings)),
      make('tbody', {}, ...rows.map(row => cells('td', row)))
    )
  );
}

function mark(panel) {
  panel.dirty = true;
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(drawSome);
}

// Draws what is in view, for at most 8 ms of a frame.
function drawSome() {
  const until = performance.now() + 8;
  drawing = false;
  for (const panel of panels) {
    if (!panel.dirty || !panel.visible) continue;
    if (performance.now() > until) {
      drawing = true;
      requestAnimationFrame(drawSome);
      return;
    }
    panel.dirty = false;
    drawPanel(panel);
  }
}

function refresh() {
  showStrip();
  panels.forEach(mark);
}
