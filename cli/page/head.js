// SPDX-License-Identifier: Apache-2.0
// What the page says in words: the head, its banners, and the panel of the job.

function whereText(head) {
  const parts = [];
  if (head.epoch > 0)
    parts.push(head.epochs > 0 ? `epoch ${count(head.epoch)}/${count(head.epochs)}` : `epoch ${count(head.epoch)}`);
  if (head.step > 0) parts.push(`step ${count(head.step)}`);
  if (head.live && head.time_left !== null) parts.push(`${clock(head.time_left)} left`);
  if (head.missing.length > 0) parts.push(`${head.missing.length} missing`);
  return parts.join(' · ');
}

function showStrip() {
  const strip = document.getElementById('strip');
  for (const run of runs) {
    if (!run.strip) {
      const parts = {
        dot: make('span', {class: 'dot'}),
        name: make('span', {class: 'name'}),
        pill: make('span', {class: 'pill'}),
        where: make('span', {class: 'where'})
      };
      const several = runs.length > 1;
      const box = make(
        several ? 'button' : 'div',
        {class: 'run', type: several ? 'button' : null, title: run.name},
        several ? parts.dot : null,
        parts.name,
        parts.pill,
        parts.where
      );
      if (several) {
        box.setAttribute('aria-pressed', 'true');
        box.addEventListener('click', () => {
          run.shown = !run.shown;
          box.setAttribute('aria-pressed', String(run.shown));
          refresh();
        });
      }
      run.strip = parts;
      strip.append(box);
    }
    const head = run.head;
    run.strip.dot.style.background = colors[`c${run.id % 8}`];
    setText(run.strip.name, runs.length > 1 ? shortName(run) : head ? head.job || shortName(run) : run.name);
    if (!head) continue;
    setText(run.strip.pill, head.state);
    run.strip.pill.className = `pill ${head.state}`;
    setText(run.strip.where, whereText(head));
  }
  const first = runs[0] && runs[0].head;
  if (first)
    document.title = `${first.state} · ${runs.length > 1 ? `${runs.length} runs` : first.job || runs[0].name} · Ballast`;
}

function bannersOf(run) {
  const found = [],
    prefix = runs.length > 1 ? `${shortName(run)}: ` : '';
  const silent = Math.round((performance.now() - run.answered) / 1000);
  if (run.failure && silent >= STALE_SECONDS) {
    found.push([
      'bad',
      `${prefix}The page's server does not answer for ${clock(silent)} (${run.failure}): the figures below are old. If its command has ended: ballast page ${run.name}`
    ]);
    return found;
  }
  if (!run.head) return found;
  const old = Math.round((performance.now() - run.heard) / 1000);
  if (run.head.live && old >= STALE_SECONDS) found.push(['bad', `${prefix}No new figures for ${clock(old)}.`]);
  if (run.head.state === 'unreachable') found.push(['bad', `${prefix}${capital(run.head.error)}`]);
  else if (run.head.error && run.head.state !== 'interrupted')
    found.push([run.head.live ? 'warn' : 'bad', `${prefix}${capital(run.head.error)}`]);
  if (run.head.live && run.head.silent.length > 0) {
    const list = run.head.silent.slice(0, 3).join('; ');
    found.push([
      'warn',
      `${prefix}${run.head.silent.length} of ${run.head.processes} processes do not answer: ${list}${run.head.silent.length > 3 ? '; …' : ''}`
    ]);
  }
  for (const wait of run.head.live ? run.head.waits.slice(0, 2) : [])
    found.push(['warn', `${prefix}Longest wait: ${wait}`]);
  if (run.head.read < 1)
    found.push([
      'calm',
      `${prefix}Reading metrics.jsonl: ${Math.round(run.head.read * 100)}%. The loss is a sketch until then.`
    ]);
  if (run.head.state === 'unfinished') {
    found.push(['calm', `${prefix}No launch runs in this directory: the panels show its files, also as they grow.`]);
  } else if (!run.head.live && run.head.state !== 'unreachable') {
    found.push([
      'calm',
      `${prefix}The run has ended: the panels show what its files hold, and what a page recorded while it ran.`
    ]);
  }
  return found;
}

function showBanner() {
  const found = runs.flatMap(bannersOf);
  const text = JSON.stringify(found);
  const banner = document.getElementById('banner');
  if (banner.dataset.shown === text) return;
  banner.dataset.shown = text;
  banner.replaceChildren(...found.map(([level, words]) => make('div', {class: level}, words)));
}

const STATS = [
  [
    'Epoch',
    head =>
      head.epochs > 0 ? `${count(head.epoch)} / ${count(head.epochs)}` : head.epoch > 0 ? count(head.epoch) : '–'
  ],
  ['Step', head => count(head.step)],
  ['Time left', head => (head.live && head.time_left !== null ? clock(head.time_left) : '–')],
  ['Trained for', head => clock(head.seconds)],
  ['Examples', head => format(head.examples, 'count').replace(' count', '')],
  ['Examples/s', head => format(head.examples_per_second, 'count').replace(' count', '')],
  [
    'Lost so far',
    head =>
      head.workers_lost + head.servers_lost === 0
        ? 'none'
        : [
            [head.workers_lost, 'worker'],
            [head.servers_lost, 'server']
          ]
            .filter(([n]) => n > 0)
            .map(([n, word]) => `${n} ${word}${n > 1 ? 's' : ''}`)
            .join(', ')
  ],
  ['Processes', head => (head.processes > 0 ? `${head.processes - head.silent.length} of ${head.processes}` : '–')]
];

function showJobs(panel) {
  for (const run of shownRuns()) {
    if (!run.job) {
      const parts = {
        name: make('b', {}),
        pill: make('span', {class: 'pill'}),
        mode: make('span', {class: 'unit'}),
        path: make('div', {class: 'path'}),
        bar: make('div', {}),
        list: make('ul', {class: 'missing', hidden: ''}),
        notices: make('ul', {hidden: ''})
      };
      parts.values = STATS.map(() => make('dd', {}));
      parts.dot = make('span', {class: 'dot'});
      run.job = parts;
      parts.element = make(
        'div',
        {},
        make('div', {class: 'row'}, runs.length > 1 ? parts.dot : null, parts.name, parts.pill, parts.mode),
        parts.path,
        make('div', {class: 'progress', role: 'progressbar', 'aria-label': 'Examples done'}, parts.bar),
        make(
          'dl',
          {class: 'stats'},
          ...STATS.map(([name], i) => make('div', {}, make('dt', {}, name), parts.values[i]))
        ),
        parts.list,
        parts.notices
      );
    }
    const {head, job} = run;
    setText(job.name, head.job || shortName(run));
    setText(job.pill, head.state);
    job.pill.className = `pill ${head.state}`;
    setText(job.mode, head.mode);
    setText(job.path, head.name);
    const share =
      head.total_examples > 0
        ? Math.min(1, head.examples / head.total_examples)
        : head.state === 'finished'
          ? 1
          : head.epochs > 0
            ? Math.min(1, head.epoch / head.epochs)
            : 0;
    job.bar.style.width = `${100 * share}%`;
    job.bar.style.background = job.dot.style.background = colors[`c${run.id % 8}`];
    STATS.forEach(([, text], i) => setText(job.values[i], text(head)));
    showList(
      job.list,
      head.missing.map(text => `Missing: ${text}`)
    );
    showList(job.notices, head.notices.slice(-5).reverse());
  }
  const wanted = shownRuns().map(run => run.job.element);
  if (
    wanted.length !== panel.body.childElementCount ||
    wanted.some((element, i) => panel.body.children[i] !== element)
  )
    panel.body.replaceChildren(...wanted);
}

function showList(list, texts) {
  const text = texts.join('\n');
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.hidden = texts.length === 0;
  list.replaceChildren(...texts.map(each => make('li', {}, each)));
}
