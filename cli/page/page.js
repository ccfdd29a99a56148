// SPDX-License-Identifier: Apache-2.0
// Pointer, keys and menus; starts the page.

function listen(panel) {
  panel.canvas.addEventListener('pointermove', event => {
    const rect = panel.canvas.getBoundingClientRect();
    point(panel, event.clientX - rect.left, event.clientX, event.clientY);
  });
  panel.canvas.addEventListener('pointerleave', unpoint);
  panel.canvas.addEventListener('blur', unpoint);
  panel.canvas.addEventListener('keydown', event => {
    const plot = panel.plots[0];
    if (event.key === 't' || event.key === 'T') return (toggleTable(panel), panel.tableButton.focus());
    if (event.key === 'f' || event.key === 'F') return toggleLarge(panel);
    if (event.key === 'Escape') {
      if (panel.element.classList.contains('large')) toggleLarge(panel);
      return unpoint();
    }
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!plot || (!step && event.key !== 'Home' && event.key !== 'End')) return;
    event.preventDefault();
    const width = plot.area.right - plot.area.left;
    const from = panel.keyX ?? plot.area.right;
    panel.keyX =
      event.key === 'Home'
        ? plot.area.left
        : event.key === 'End'
          ? plot.area.right
          : Math.min(plot.area.right, Math.max(plot.area.left, from + (step * width) / 60));
    const rect = panel.canvas.getBoundingClientRect();
    point(panel, panel.keyX, rect.left + panel.keyX, rect.top + 20);
  });
}

// The value of a line near a place.
function valueAt(line, xKey, at) {
  const xs = line[xKey];
  let i = lowerBound(xs, at);
  if (i > 0 && (i === xs.length || at - xs[i - 1] < xs[i] - at)) --i;
  if (xKey === 't' && Math.abs(xs[i] - at) > gapOf(xs) && line.t.length > 3) return null;
  return line.low[i] === null ? null : [line.low[i], line.high[i]];
}

function point(panel, x, clientX, clientY) {
  const plot = panel.plots.find(
    each =>
      x >= each.area.left - 6 && x <= each.area.right + 6 && x >= each.box.left && x <= each.box.left + each.box.width
  );
  if (!plot) return unpoint();
  const {model, area} = plot;
  const share = Math.min(1, Math.max(0, (x - area.left) / (area.right - area.left)));
  const at = model.x.low + share * (model.x.high - model.x.low);
  const items = model.lines
    .map(line => ({line, value: valueAt(line, model.xKey, at)}))
    .filter(item => item.value !== null);
  if (plot.kind === 'line') items.sort((a, b) => b.value[1] - a.value[1]);
  else items.reverse();
  const text = ([low, high]) =>
    high - low > Math.abs(high) * 0.01
      ? `${format(low, model.unit)} – ${format(high, model.unit)}`
      : format(high, model.unit);
  const tip = document.getElementById('tip');
  tip.replaceChildren(
    make(
      'div',
      {class: 'at'},
      model.xKey === 't' ? `${clock(at)} after the start` : `${format(at, 'count').replace(' count', '')} examples`
    ),
    ...items.slice(0, MAX_TIP_LINES).map(({line, value}) => {
      const swatch = make('i', {});
      swatch.style.background = line.color;
      return make('div', {class: 'item'}, swatch, make('span', {}, line.name), make('b', {}, text(value)));
    }),
    items.length > MAX_TIP_LINES ? make('div', {class: 'at'}, `and ${items.length - MAX_TIP_LINES} more`) : null
  );
  tip.hidden = false;
  const width = tip.offsetWidth,
    height = tip.offsetHeight;
  const left = clientX + 14 + width > innerWidth ? Math.max(4, clientX - 14 - width) : clientX + 14;
  tip.style.transform = `translate(${left}px, ${Math.max(4, Math.min(innerHeight - height - 4, clientY + 12))}px)`;
  // The same moment in all panels over time.
  for (const other of panels) {
    if (!other.cross) continue;
    const same = other.visible && other.plots.length > 0 && other.plots[0].model.xKey === model.xKey;
    other.cross.hidden = !same;
    if (!same) continue;
    const target = other === panel ? plot : other.plots[0];
    const px = target.toX(at);
    other.cross.hidden = px < target.area.left || px > target.area.right;
    other.cross.style.transform = `translateX(${px}px)`;
  }
}

function unpoint() {
  document.getElementById('tip').hidden = true;
  for (const panel of panels) {
    if (panel.cross) panel.cross.hidden = true;
    panel.keyX = undefined;
  }
}

function control(id, name, convert) {
  const element = document.getElementById(id);
  const kept = recall(name);
  if (kept !== null && [...element.options].some(option => option.value === kept)) element.value = kept;
  view[name] = convert(element.value);
  element.addEventListener('change', () => {
    view[name] = convert(element.value);
    remember(name, element.value);
    unpoint();
    refresh();
  });
}

async function start() {
  view.theme = recall('theme') || 'auto';
  readColors();
  control('span', 'span', Number);
  control('axis', 'axis', String);
  control('layout', 'layout', String);
  document.getElementById('theme').addEventListener('click', () => {
    view.theme = {auto: 'dark', dark: 'light', light: 'auto'}[view.theme] || 'auto';
    remember('theme', view.theme);
    readColors();
    for (const panel of panels) panel.legendKeys = '';
    refresh();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    readColors();
    refresh();
  });
  const pause = document.getElementById('pause');
  pause.addEventListener('click', () => {
    view.paused = !view.paused;
    press(pause, view.paused);
    pause.textContent = view.paused ? 'Resume' : 'Pause';
    if (!view.paused) refresh();
  });
  panels = panelList.map((spec, index) => buildPanel(spec, index + 1));
  document.getElementById('panels').append(...panels.map(panel => panel.element));
  const observer = new IntersectionObserver(
    entries => {
      for (const entry of entries) {
        const panel = panels.find(each => each.element === entry.target);
        panel.visible = entry.isIntersecting;
        if (panel.visible && panel.dirty) mark(panel);
      }
    },
    {rootMargin: '120px'}
  );
  for (const panel of panels) observer.observe(panel.element);
  setInterval(showBanner, 1000);
  while (runs.length === 0) {
    try {
      for (const name of (await get('/runs')).runs) {
        runs.push({
          id: runs.length,
          name,
          head: null,
          lines: new Map(),
          last: new Map(),
          shown: true,
          loaded: false,
          failure: '',
          answered: performance.now(),
          heard: performance.now()
        });
      }
    } catch (error) {
      document
        .getElementById('banner')
        .replaceChildren(make('div', {class: 'bad'}, `The page's server does not answer (${error.message}).`));
      await new Promise(resolve => setTimeout(resolve, 2000));
    }
  }
  document.getElementById('layout-label').hidden = runs.length < 2;
  runs.forEach(poll);
}

start();
