// What the page can do beyond being read: sort, filter, choose columns, join dots with rows. The
// timeline's zoom stands in timeline.js.
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

  // ---- contents: which section is in sight ----
  const links = all('nav a');
  const sections = links.map((link) => document.querySelector(link.getAttribute('href')));
  const seen = () => {
    const at = sections.findLastIndex((section) => section.getBoundingClientRect().top < 120);
    links.forEach((link, i) => i === Math.max(at, 0) ? link.setAttribute('aria-current', 'true')
                                                     : link.removeAttribute('aria-current'));
  };
  addEventListener('scroll', seen, {passive: true});
  seen();
  if (!table) return;

  // ---- rows and marks that stand for the same ----
  const body = () => all('tbody', table).find((b) => !b.hidden);
  const MARKS = 'svg :is([data-row], [data-before], [data-layer], [data-layer-before])';
  const shares = (a, b, keys) =>
      keys.some((key) => a.dataset[key] !== undefined && a.dataset[key] === b.dataset[key]);
  // A pass has a row and a dot of its own; a layer's row, or a span of the timeline, has its layer.
  const single = (e) => e.dataset.row !== undefined || e.dataset.before !== undefined;
  const same = (a, b) => shares(a, b, single(a) && single(b) ? ['row', 'before']
                                                             : ['layer', 'layerBefore']);
  const row_of = (mark) => [...body().rows].find((row) => same(row, mark));
  // Dots name their row only: its layer stands in the table.
  const by_pass = {row: {}, before: {}};
  for (const row of all('tbody tr', table))
    for (const key of ['row', 'before'])
      if (row.dataset[key] !== undefined) by_pass[key][row.dataset[key]] = row;
  for (const mark of all(MARKS)) {
    const row = by_pass.row[mark.dataset.row] ?? by_pass.before[mark.dataset.before];
    for (const key of ['layer', 'layerBefore'])
      if (row?.dataset[key] !== undefined) mark.dataset[key] = row.dataset[key];
  }

  // A dot may lie beneath others: what is meant is drawn once more, above all. The dots themselves
  // stay where they are, so that the same click always meets the same ones.
  const raise = (marks, kind) => {
    for (const old of all(`.halo.of-${kind}`)) old.remove();
    for (const mark of marks) {
      if (!mark.classList.contains('mark')) continue;
      const halo = mark.cloneNode(false);
      for (const name of halo.getAttributeNames())
        if (name.startsWith('data-') || ['tabindex', 'role'].includes(name))
          halo.removeAttribute(name);
      halo.classList.remove('near', 'selected', 'before');
      halo.classList.add('halo', `of-${kind}`);
      mark.ownerSVGElement.append(halo);
    }
  };
  const show = (element, kind) => {
    for (const old of all('.' + kind)) old.classList.remove(kind);
    const alike = !element ? [] : [...all(MARKS), ...body().rows]
        .filter((other) => other === element || same(other, element));
    for (const other of alike) other.classList.add(kind);
    raise(alike, kind);
  };
  let selected = null;
  const select = (element, quiet) => {
    selected = element;
    show(element, 'selected');
    const row = all('tr.selected', table)[0];
    if (row && !quiet && !table.contains(element)) {
      row.hidden = false;
      row.scrollIntoView({block: 'center'});
      row.focus({preventScroll: true});
    }
  };

  // ---- what lies where a click was: one mark, or a list of all of them ----
  const pick = document.body.appendChild(document.createElement('div'));
  pick.id = 'pick';
  pick.setAttribute('role', 'dialog');
  pick.setAttribute('aria-label', 'what lies here');
  pick.hidden = true;
  const entries = new Map();
  const target = (event) => {
    const at = event.target;
    return entries.get(at.closest?.('#pick button')) ?? at.closest?.('#rows tbody tr, ' + MARKS);
  };
  const marks_at = (x, y) => {
    const found = new Map();  // by what they lead to, the uppermost first
    for (const element of document.elementsFromPoint(x, y)) {
      const mark = element.closest(MARKS);
      const leads = mark && (single(mark) ? row_of(mark) ?? mark
          : `${mark.dataset.layer} ${mark.dataset.layerBefore}`);
      if (mark && !found.has(leads)) found.set(leads, mark);
    }
    return [...found.values()];
  };
  const close = () => {
    pick.hidden = true;
    pick.replaceChildren();
    entries.clear();
  };
  const offer = (marks, x, y) => {
    close();
    pick.append(`${marks.length} lie here`);
    for (const mark of marks) {
      const button = pick.appendChild(document.createElement('button'));
      const [what, when] = mark.querySelector('title').textContent.split('\n');
      const before = mark.matches('.before, [data-layer-before]:not([data-layer])');
      button.type = 'button';
      button.append(Object.assign(document.createElement('b'), {textContent: what}),
                    Object.assign(document.createElement('small'),
                                  {textContent: (before ? 'before: ' : '') + when}));
      entries.set(button, mark);
    }
    pick.hidden = false;
    const box = pick.getBoundingClientRect(), page = document.documentElement;
    pick.style.left = `${scrollX + Math.max(8, Math.min(x, page.clientWidth - box.width - 16))}px`;
    pick.style.top = `${scrollY + Math.max(8, Math.min(y + 8, innerHeight - box.height - 16))}px`;
    pick.querySelector('button').focus({preventScroll: true});
  };
  let near = null;
  document.addEventListener('mouseover', (event) => {
    const element = target(event);
    if (element !== near) show(near = element, 'near');
  });
  document.addEventListener('pointerdown', (event) => {
    if (!pick.contains(event.target)) close();
  });
  document.addEventListener('click', (event) => {
    const element = target(event), listed = pick.contains(event.target);
    if (listed && element) close();
    // Assistive technology clicks on an element, and not at a place.
    const here = element?.matches(MARKS) && !listed && event.detail > 0
        ? marks_at(event.clientX, event.clientY) : [];
    if (here.length > 1) offer(here, event.clientX, event.clientY);
    else if (element) select(element);
  });

  // ---- keys: one stop per table and drawing, arrows within ----
  const stops = (list) => list.forEach((e, i) => { e.tabIndex = i === 0 ? 0 : -1; });
  const move = (from, list, step) => {
    const to = list[list.indexOf(from) + step];
    if (!to) return;
    to.dispatchEvent(new CustomEvent('reveal', {bubbles: true}));
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  };
  const matching = () => [...body().rows].filter((row) => !row.hidden);
  const unfolded = () => matching().filter((row) => row.getClientRects().length > 0);
  const within = (svg) => all(MARKS.slice(4) + ':not(.divided)', svg);  // see timeline.js
  for (const svg of all('svg')) {
    stops(within(svg));
    for (const mark of within(svg)) mark.setAttribute('role', 'button');
  }
  document.addEventListener('keydown', (event) => {
    const step = {ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1}[event.key];
    const focus = document.activeElement;
    if (event.key === 'Escape' && !pick.hidden) {
      const mark = entries.values().next().value;
      close();
      mark.focus({preventScroll: true});
    } else if (pick.contains(focus)) {
      if (!step) return;
      move(focus, [...entries.keys()], step);
    } else {
      const element = focus && target({target: focus});
      if (!element || event.shiftKey) return;
      if (event.key === 'Enter' || event.key === ' ') select(element);
      else if (event.key === 'Escape') select(null);
      else if (step) move(element, element.matches('tr') ? unfolded()
          : within(element.closest('svg')), step);
      else return;
    }
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
    stops(matching());
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
  const more = document.querySelector('label[for=all-rows]');
  const UNFOLDED = 60;  // as in page.css
  const apply_filter = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body().rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    const n = matching().length;
    shown.textContent = `${n} of ${body().rows.length} rows`;
    more.hidden = n <= UNFOLDED;
    more.firstElementChild.textContent = n - UNFOLDED;
    stops(matching());
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
  const place = document.getElementById('columns');
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
