// The timeline's zoom. A drawing of a whole step is as wide as the page; here a part of the step
// takes its place: spans are moved and widened, those that stood for many take their parts' place,
// and names and the axis are written anew, in the size they had.
(() => {
  const put = (parent, tag, attributes, words = '') => {
    const element = document.createElementNS(parent.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = words;
    return parent.appendChild(element);
  };
  const clamp = (v, low, high) => Math.min(Math.max(v, low), high);
  const time = (seconds) => {
    const [unit, name] = seconds >= 1 ? [1, 's'] : seconds >= 1e-3 ? [1e-3, 'ms'] : [1e-6, '\u00b5s'];
    return `${parseFloat((seconds / unit).toPrecision(3))} ${name}`;
  };

  const zoomable = (svg) => {
    const number = (element, name) => parseFloat(element.getAttribute(name));
    const lane = svg.querySelector('.lane');
    const left = number(lane, 'x'), room = number(lane, 'width');
    const seconds = parseFloat(svg.querySelector('[data-seconds]').dataset.seconds);
    const most = Math.max(1, Math.min(5000, seconds * 1e6));  // down to a microsecond
    const axes = svg.querySelector('.axes');
    // Places and widths are fractions of the step.
    const spans = [...svg.querySelectorAll('.rank .span')].map((rect) => {
      const home = {x: rect.getAttribute('x'), width: rect.getAttribute('width')};
      const numbers = (rect.dataset.parts ?? '').split(' ').filter(Boolean).map(Number);
      let from = parseFloat(home.x), to = from + parseFloat(home.width);
      if (numbers.length > 0) [from, to] = [numbers[1], numbers.at(-2) + numbers.at(-1)];
      return {rect, home, numbers, parts: null, x: (from - left) / room, w: (to - from) / room};
    });
    let at = 0, zoom = 1;  // what is seen: from `at` on, 1 / zoom of the step

    // ---- names of layers: the table has them ----
    const key = (rect) => rect.dataset.layer !== undefined ? 'data-layer' : 'data-layer-before';
    const names = new Map();
    const name_of = (kind, layer) => {
      const id = `${kind}="${layer}"`;
      if (!names.has(id)) {
        const row = document.querySelector(`#rows tbody tr[${id}] b`);
        names.set(id, row ? row.textContent : `layer ${layer}`);
      }
      return names.get(id);
    };

    const parts_of = ({rect, numbers}) => {
      const parts = [];
      for (let i = 0; i < numbers.length; i += 3) {
        const [layer, x, w] = numbers.slice(i, i + 3);
        const part = rect.cloneNode(false);
        part.classList.remove('near', 'selected');
        delete part.dataset.parts;
        part.setAttribute(key(rect), layer);
        part.tabIndex = -1;
        put(part, 'title', {}, `${name_of(key(rect), layer)}, ${rect.dataset.what}\n` +
            `${time(w / room * seconds)} at ${time((x - left) / room * seconds)}`);
        parts.push({rect: part, x: (x - left) / room, w: w / room});
      }
      return parts;
    };

    // ---- drawing ----
    const pixels = (x) => left + (x - at) * zoom * room;
    const place = ({rect, x, w}, wanted) => {
      const from = clamp(pixels(x), left, left + room), to = clamp(pixels(x + w), left, left + room);
      const seen = wanted && pixels(x + w) >= left && pixels(x) <= left + room;
      rect.style.display = seen ? '' : 'none';
      if (!seen) return null;
      const width = Math.max(0.3, to - from);
      rect.setAttribute('x', Math.min(from, left + room - 0.3));
      rect.setAttribute('width', width);
      return {rect, from, to};
    };
    const label = (group, seen, waits) => {
      for (const {rect, from, to} of seen) {
        const height = number(rect, 'height');
        if (rect.classList.contains('wait') || height < 13 || rect.dataset.parts) continue;
        const sent = rect.classList.contains('lane-communication');
        let end = to;
        if (sent)  // a name shall not lie under a hatch
          for (const wait of waits)
            if (wait.to > from && wait.from < to && wait.rect.parentNode === rect.parentNode)
              end = Math.min(end, Math.max(wait.from, from));
        const all = name_of(key(rect), rect.getAttribute(key(rect)));
        const tail = all.slice(all.lastIndexOf('.') + 1);
        const fitting = [all, /^\d*$/.test(tail) ? all : `\u2026${tail}`]
            .find((s) => 0.6 * 11 * s.length + 6 <= end - from);
        if (fitting)
          put(group, 'text', {class: `box-name middle${sent ? ' on-communication' : ''}`,
                              x: (from + end) / 2, y: number(rect, 'y') + height / 2 + 4}, fitting);
      }
    };
    const axis = (group) => {
      const range = seconds / zoom * 1e3, decade = 10 ** Math.floor(Math.log10(range / 9));
      const step = decade * ([1, 2, 5].find((s) => range <= s * decade * 9) ?? 10);
      const digits = clamp(-Math.floor(Math.log10(step) + 1e-9), 0, 9);
      const line = axes.querySelector('line'), words = axes.querySelector('text');
      for (let i = Math.ceil(at * seconds * 1e3 / step - 1e-9); ; ++i) {
        const x = pixels(i * step / 1e3 / seconds);
        if (x > left + room + 0.01) break;
        put(group, 'line', {class: 'grid', x1: x, x2: x, y1: number(line, 'y1'),
                            y2: number(line, 'y2')});
        put(group, 'text', {class: 'tick middle', x, y: number(words, 'y')},
            (i * step).toFixed(digits));
      }
      group.append(axes.querySelector('text:last-of-type').cloneNode(true));  // the unit
    };
    const draw = () => {
      svg.querySelectorAll('.zoom').forEach((group) => group.remove());
      svg.classList.toggle('zoomed', zoom > 1);
      if (zoom === 1) at = 0;
      at = clamp(at, 0, 1 - 1 / zoom);
      const seen = [];
      for (const span of spans) {
        const count = span.numbers.length / 3, wide = span.w * zoom * room;
        const inside = pixels(span.x + span.w) >= left && pixels(span.x) <= left + room;
        const divided = zoom > 1 && count > 0 && inside && wide / count > 1.5;
        if (divided && !span.rect.classList.contains('divided'))
          span.rect.after(...(span.parts ??= parts_of(span)).map((part) => part.rect));
        span.rect.classList.toggle('divided', divided);
        seen.push(place(span, !divided));
        for (const part of span.parts ?? [])
          if (divided) seen.push(place(part, true));
          else part.rect.remove();
        if (zoom > 1) continue;
        for (const [name, value] of Object.entries(span.home)) span.rect.setAttribute(name, value);
      }
      if (zoom > 1) {
        const drawn = seen.filter(Boolean);
        label(put(svg, 'g', {class: 'zoom'}), drawn,
              drawn.filter(({rect}) => rect.classList.contains('wait')));
        const group = put(svg, 'g', {class: 'zoom axes'});
        axes.after(group);
        axis(group);
      }
      const from = at * seconds, to = from + seconds / zoom;
      shown.textContent = zoom === 1 ? `whole step, ${time(seconds)}`
          : `${time(to - from)} from ${(from * 1e3).toFixed(3)} to ${(to * 1e3).toFixed(3)} ms`;
      whole.disabled = less.disabled = zoom === 1;
      more.disabled = zoom === most;
    };
    /// Zooms by a factor; what lies at `middle` of the view, from 0 to 1, stays there.
    const scale = (by, middle = 0.5) => {
      const fixed = at + middle / zoom;
      zoom = clamp(zoom * by, 1, most);
      if (zoom < 1.001) zoom = 1;
      at = fixed - middle / zoom;
      draw();
    };
    const pan = (views) => { at += views / zoom; draw(); };
    const reset = () => { zoom = 1; draw(); };

    // ---- buttons ----
    const bar = document.createElement('div');
    bar.className = 'controls';
    bar.setAttribute('role', 'group');
    bar.setAttribute('aria-label', 'zoom of the timeline');
    const button = (words, label, run) => {
      const made = bar.appendChild(document.createElement('button'));
      made.type = 'button';
      made.textContent = words;
      made.setAttribute('aria-label', label);
      made.addEventListener('click', run);
      return made;
    };
    const less = button('\u2212', 'zoom out', () => scale(1 / 2));
    const more = button('+', 'zoom in', () => scale(2));
    const whole = button('whole step', 'show the whole step', reset);
    const hint = bar.appendChild(document.createElement('small'));
    hint.textContent = 'Ctrl and wheel, or + and \u2212: zoom; drag, or arrow keys: move; 0: whole step';
    const shown = bar.appendChild(document.createElement('output'));
    svg.before(bar);

    // ---- keys ----
    svg.tabIndex = 0;
    const middle_of = (element) => {
      const span = element !== svg && element.getAttribute('x') !== null;
      return span ? clamp((number(element, 'x') + number(element, 'width') / 2 - left) / room, 0, 1)
                  : 0.5;
    };
    svg.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const arrow = {ArrowLeft: -0.2, ArrowRight: 0.2}[event.key];
      if ('+='.includes(event.key)) scale(2, middle_of(event.target));
      else if (event.key === '-') scale(1 / 2, middle_of(event.target));
      else if (event.key === '0') reset();
      else if (arrow && (event.target === svg || event.shiftKey)) pan(arrow);
      else return;
      event.preventDefault();
    });
    // A span that is to be focused comes into view first.
    svg.addEventListener('reveal', (event) => {
      const span = spans.flatMap((s) => [s, ...s.parts ?? []]).find((s) => s.rect === event.target);
      if (!span || zoom === 1 || (span.x >= at && span.x + span.w <= at + 1 / zoom)) return;
      at = span.x + span.w / 2 - 0.5 / zoom;
      draw();
    });

    // ---- wheel, mouse, fingers ----
    const place_of = (clientX) => {
      const box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
      return ((clientX - box.left) * unit - left) / room;  // 0 to 1 within the view
    };
    svg.addEventListener('wheel', (event) => {
      const wanted = event.ctrlKey || event.metaKey || svg.contains(document.activeElement);
      const aside = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (aside ? zoom === 1 : !wanted || (zoom === 1 && event.deltaY > 0)) return;
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 33 : 1;
      if (aside) pan((event.deltaX || event.deltaY) * lines / 1000);
      else scale(Math.exp(-event.deltaY * lines / 300), clamp(place_of(event.clientX), 0, 1));
    }, {passive: false});

    const held = new Map();  // pointers that are down, and where
    let moved = false;
    svg.addEventListener('pointerdown', (event) => {
      if (event.button !== 0) return;
      if (held.size === 0) moved = false;
      held.set(event.pointerId, event.clientX);
    });
    svg.addEventListener('pointermove', (event) => {
      if (!held.has(event.pointerId)) return;
      const before = [...held.values()].map(place_of), old = held.get(event.pointerId);
      if (!moved && held.size === 1 && Math.abs(event.clientX - old) < 4) return;  // still a click
      if (!moved) svg.setPointerCapture(event.pointerId);
      moved = true;
      held.set(event.pointerId, event.clientX);
      const after = [...held.values()].map(place_of);
      const middle = (all) => all.reduce((sum, v) => sum + v, 0) / all.length;
      if (held.size === 2) {
        const apart = ([a, b]) => Math.max(0.01, Math.abs(a - b));
        scale(apart(after) / apart(before), middle(before));
      }
      if (zoom > 1) pan(middle(before) - middle(after));
    });
    for (const end of ['pointerup', 'pointercancel'])
      svg.addEventListener(end, (event) => held.delete(event.pointerId));
    svg.addEventListener('click', (event) => {  // what ends a drag selects nothing
      if (moved) event.stopPropagation();
      moved = false;
    }, true);
    svg.addEventListener('lostpointercapture', (event) => held.delete(event.pointerId));
    draw();
  };
  document.querySelectorAll('svg.timeline').forEach(zoomable);
})();
