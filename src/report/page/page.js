// What the page can do beyond being read: sort, filter, choose columns, join dots with rows.
'use strict';
(() => {
  const root = document.documentElement;
  const table = document.getElementById('rows');
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  // ---- light and dark ----
  const theme = document.getElementById('theme');
  const stored = (value) => {
    try {  // a page from disk may have no storage
      if (value) localStorage.setItem('lamina-theme', value);
      return localStorage.getItem('lamina-theme');
    } catch { return null; }
  };
  const dark = () => root.dataset.theme
      ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  const name_theme = () => { theme.textContent = dark() ? 'light' : 'dark'; };
  if (['light', 'dark'].includes(stored())) root.dataset.theme = stored();
  theme.hidden = false;
  theme.addEventListener('click', () => {
    root.dataset.theme = dark() ? 'light' : 'dark';
    stored(root.dataset.theme);
    name_theme();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', name_theme);
  name_theme();
  if (!table) return;

  // ---- rows and marks that stand for the same ----
  const body = () => all('tbody', table).find((b) => !b.hidden);
  const marks = all('svg [data-row], svg [data-before], svg [data-layer]');
  const has = (a, b, key) => a.dataset[key] !== undefined && a.dataset[key] === b.dataset[key];
  // A pass has a row and a dot of its own; a layer's row, or a span of the timeline, has its layer.
  const single = (e) => e.dataset.row !== undefined || e.dataset.before !== undefined;
  const same = (a, b) => single(a) && single(b)
      ? has(a, b, 'row') || has(a, b, 'before') : has(a, b, 'layer');
  // Dots name their row only: its layer stands in the table.
  const layers = {row: {}, before: {}};
  for (const row of all('tbody tr', table))
    for (const key of ['row', 'before'])
      if (row.dataset[key] !== undefined) layers[key][row.dataset[key]] = row.dataset.layer;
  for (const mark of marks)
    if (mark.dataset.layer === undefined)
      mark.dataset.layer = layers.row[mark.dataset.row] ?? layers.before[mark.dataset.before];

  const show = (element, kind) => {
    for (const old of all('.' + kind)) old.classList.remove(kind);
    if (!element) return;
    for (const other of [...marks, ...body().rows])
      if (other === element || same(other, element)) other.classList.add(kind);
  };
  const target = (event) => event.target.closest?.(
      '#rows tbody tr, svg [data-row], svg [data-before], svg [data-layer]');
  let selected = null;
  const select = (element, quiet) => {
    selected = element;
    show(element, 'selected');
    for (const mark of marks)  // a dot may lie beneath others
      if (single(mark) && mark.classList.contains('selected')) mark.parentNode.append(mark);
    const row = all('tr.selected', table)[0];
    if (row && !quiet && !table.contains(element)) {
      row.hidden = false;
      row.scrollIntoView({block: 'center'});
      row.focus({preventScroll: true});
    }
  };
  let near = null;
  document.addEventListener('mouseover', (event) => {
    const element = target(event);
    if (element !== near) show(near = element, 'near');
  });
  document.addEventListener('click', (event) => {
    const element = target(event);
    if (element) select(element);
  });

  // ---- keys: one stop per table and drawing, arrows within ----
  const stops = (list) => list.forEach((e, i) => { e.tabIndex = i === 0 ? 0 : -1; });
  const move = (from, list, step) => {
    const to = list[list.indexOf(from) + step];
    if (!to) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  };
  const visible_rows = () => [...body().rows].filter((r) => !r.hidden);
  const drawing_marks = (svg) => all('[data-row], [data-layer]', svg);
  for (const svg of all('svg')) {
    stops(drawing_marks(svg));
    for (const mark of drawing_marks(svg)) mark.setAttribute('role', 'button');
  }
  document.addEventListener('keydown', (event) => {
    const element = document.activeElement && target({target: document.activeElement});
    if (!element) return;
    const step = {ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (event.key === 'Enter' || event.key === ' ') select(element);
    else if (event.key === 'Escape') select(null);
    else if (step) move(element, element.matches('tr') ? visible_rows()
        : drawing_marks(element.closest('svg')), step);
    else return;
    event.preventDefault();
  });
  document.addEventListener('focusin', (event) => {
    const element = target(event);
    if (element) show(element, 'near');
  });

  // ---- sort ----
  const heads = all('thead th', table);
  const value = (row, column) => {
    const words = row.cells[column].textContent.trim();
    const number = parseFloat(words);
    return heads[column].classList.contains('w') ? words : number;
  };
  const sort = (column, down) => {
    const sign = down ? -1 : 1;
    for (const part of all('tbody', table)) {
      const rows = [...part.rows].map((row) => [value(row, column), row]);
      rows.sort(([a], [b]) => {
        const none = (v) => v === '' || Number.isNaN(v);
        if (none(a) || none(b)) return none(a) - none(b);  // empty cells last, either way
        return sign * (typeof a === 'string' ? a.localeCompare(b, undefined, {numeric: true})
                                             : a - b);
      });
      part.append(...rows.map(([, row]) => row));
    }
    heads.forEach((head, i) => head.setAttribute('aria-sort',
        i !== column ? 'none' : down ? 'descending' : 'ascending'));
    stops(visible_rows());
  };
  heads.forEach((head, column) => head.querySelector('button').addEventListener('click', () => {
    const order = head.getAttribute('aria-sort');
    const first_down = head.classList.contains('n');
    sort(column, order === 'descending' ? false : order === 'ascending' ? true : first_down);
  }));

  // ---- which rows, which columns ----
  const controls = document.querySelector('.controls');
  const filter = document.getElementById('filter');
  const shown = document.getElementById('shown');
  const apply_filter = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body().rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    const n = visible_rows().length;
    shown.textContent = `${n} of ${body().rows.length} rows`;
    stops(visible_rows());
  };
  filter.addEventListener('input', apply_filter);
  const choices = all('[data-show]', controls);
  for (const choice of choices) choice.addEventListener('click', () => {
    for (const other of choices) other.setAttribute('aria-pressed', other === choice);
    for (const part of all('tbody', table)) part.hidden = part.className !== choice.dataset.show;
    apply_filter();
    if (selected) select(selected, true);
  });

  const kinds = ['core', 'work', 'communication', 'ranks', 'plan', 'counters', 'kernels'];
  const groups = [...new Set(heads.map((head) => kinds.find((k) => head.classList.contains(k))))]
      .filter((group) => group && group !== 'core');
  const style = document.head.appendChild(document.createElement('style'));
  const off = new Set();
  const hide = () => {
    style.textContent = [...off].map((g) => `#rows th.${g},#rows td.${g}{display:none}`).join('');
  };
  const place = document.getElementById('groups');
  const box = table.parentElement;
  groups.forEach((group) => off.add(group));
  for (const group of groups) {
    const button = place.appendChild(document.createElement('button'));
    button.type = 'button';
    button.textContent = group;
    const set = (on) => {
      on ? off.delete(group) : off.add(group);
      button.setAttribute('aria-pressed', on);
      hide();
    };
    button.addEventListener('click', () => set(off.has(group)));
    set(true);  // the most telling first, as long as there is room
    if (box.scrollWidth > box.clientWidth) set(false);
  }
  controls.hidden = false;
  apply_filter();
})();
