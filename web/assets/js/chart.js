// SPDX-License-Identifier: Apache-2.0
// A small line chart in SVG: one line per variant with colour, dash and letter,
// a sentence and a table that say the same, a cursor by pointer and by arrow key.
import { fillIn, h, setText, svg } from './dom.js';
import { clock } from './format.js';
import { look, mark } from './variants.js';

const W = 360, H = 120, LEFT = 50, RIGHT = 22, TOP = 8, BOTTOM = 18;

/** Axis labels are round: "10.0" → "10", "0 µs" → "0". */
const tick = (text) => (parseFloat(text.replace('$', '')) === 0 ? '0' : text.replace(/\.0+(?=\D|$)/, '').replace(/(\.\d*?)0+(?=\D|$)/, '$1'));

const span = (ms) => (ms < 110_000 ? `${Math.round(ms / 1000)} s ago` : `${Math.round(ms / 60_000)} min ago`);

/** A round number above v, with a little room: 1, 2, 2.5, 5 times a power of ten. */
function ceiling(v) {
  if (!(v > 0)) return 1;
  const p = 10 ** Math.floor(Math.log10(v));
  return [1, 2, 2.5, 5, 10, 20].find((m) => m * p >= v * 1.02) * p;
}

export class Chart {
  /** names: the variants in order; format(value) gives text; max fixes the top (1 for a ratio). */
  constructor({ title, field, names, format, max, floor }) {
    Object.assign(this, { title, field, names, format, max, floor });
    this.lines = [];
    this.cursor = null;
    this.asTable = false;
    this.svg = svg('svg', { class: 'chart', viewBox: `0 0 ${W} ${H}`, role: 'img', tabindex: '0', 'aria-label': title });
    this.readout = h('p', { class: 'readout' });
    this.live = h('p', { class: 'visually-hidden', 'aria-live': 'polite' });
    this.table = h('div', { class: 'scroll chart-table', role: 'region', tabindex: '0', 'aria-label': `${title}, table`, hidden: true });
    this.toggle = h('button', { type: 'button', class: 'quiet small', 'aria-pressed': 'false', 'aria-label': `Table of ${title}`, onclick: () => this.showTable(!this.asTable) }, 'Table');
    this.el = h('figure', { class: 'figure' }, h('figcaption', null, h('h3', null, title), this.toggle), this.readout, this.svg, this.table, this.live);
    this.svg.addEventListener('keydown', (e) => this.key(e));
    this.svg.addEventListener('pointermove', (e) => this.point(e));
    this.svg.addEventListener('pointerleave', () => { this.cursor = null; this.draw(); });
    this.svg.addEventListener('blur', () => { this.cursor = null; this.draw(); });
  }

  showTable(on) {
    this.asTable = on;
    this.toggle.setAttribute('aria-pressed', String(on));
    this.svg.toggleAttribute('hidden', on);
    this.table.hidden = !on;
    this.draw();
  }

  update(series, from, to, events) {
    this.from = from;
    this.to = to;
    this.events = events.filter((e) => e.t >= from && e.t <= to);
    this.lines = this.names.map((name) => series.points(name, this.field, from));
    this.draw();
  }

  /** The last value of each line, null where it is not known. */
  latest() { return this.lines.map((l) => l.at(-1)?.[1] ?? null); }

  sentence() {
    const now = this.latest();
    const said = this.names.map((n, i) => `${n} ${now[i] === null ? 'no value' : this.format(now[i])}${this.trend(i)}`);
    return `${this.title}, now: ${said.join('; ')}`;
  }

  trend(i) {
    const vs = this.lines[i].map((p) => p[1]).filter((v) => v !== null);
    if (vs.length < 10) return '';
    const n = Math.max(3, Math.floor(vs.length / 4)), mean = (a) => a.reduce((s, v) => s + v, 0) / a.length;
    const a = mean(vs.slice(0, n)), b = mean(vs.slice(-n));
    if (Math.abs(b - a) <= 0.1 * Math.max(Math.abs(a), 1e-9)) return ', steady';
    return b > a ? ', rising' : ', falling';
  }

  draw() {
    if (!this.lines.length) return;
    const at = this.cursor, times = this.lines[0].map((p) => p[0]);
    const values = at === null ? this.latest() : this.lines.map((l) => l[at]?.[1] ?? null);
    fillIn(this.readout, this.names.map((n, i) => h('span', null, mark(i), ' ', h('b', null, values[i] === null ? '–' : this.format(values[i])))),
      at !== null && times[at] && h('span', { class: 'hint' }, clock(times[at])));
    if (this.asTable) this.drawTable(times); else this.drawLines(times);
    this.svg.setAttribute('aria-label', this.sentence());
  }

  range() {
    const all = this.lines.flat().map((p) => p[1]).filter((v) => v !== null);
    const high = this.max ?? ceiling(Math.max(0, ...all));
    const low = this.floor && all.length ? this.floor(Math.min(...all)) : 0;
    return [low, high];
  }

  drawLines(times) {
    const [low, high] = this.range();
    const x = (t) => LEFT + ((t - this.from) / (this.to - this.from)) * (W - LEFT - RIGHT);
    const y = (v) => H - BOTTOM - ((Math.min(Math.max(v, low), high) - low) / (high - low || 1)) * (H - TOP - BOTTOM);
    const grid = [low, (low + high) / 2, high].map((v) => [
      svg('line', { class: 'grid', x1: LEFT, x2: W - RIGHT, y1: y(v), y2: y(v) }),
      svg('text', { class: 'tick', x: LEFT - 6, y: y(v) + 3.5, 'text-anchor': 'end' }, tick(this.format(v)))]);
    const axis = [svg('text', { class: 'tick', x: LEFT, y: H - 4 }, span(this.to - this.from)),
      svg('text', { class: 'tick', x: W - RIGHT, y: H - 4, 'text-anchor': 'end' }, 'now')];
    const marks = this.events.map((e) => svg('line', { class: 'event', x1: x(e.t), x2: x(e.t), y1: TOP, y2: H - BOTTOM }, svg('title', null, `${clock(e.t)} ${e.text}`)));
    const labels = [];
    const lines = this.lines.map((l, i) => {
      let d = '', pen = 'M';
      for (const [t, v] of l) {
        if (v === null) { pen = 'M'; continue; }
        d += `${pen}${x(t).toFixed(1)} ${y(v).toFixed(1)}`;
        pen = 'L';
      }
      const { letter, cls } = look(i), end = l.findLast((p) => p[1] !== null);
      if (end) labels.push({ cls, letter, x: x(end[0]) + 4, y: y(end[1]) + 4 });
      return svg('path', { class: `line ${cls}`, d: d || 'M0 0' });
    });
    labels.sort((a, b) => a.y - b.y).forEach((l, i) => { if (i > 0 && l.y - labels[i - 1].y < 11) l.y = labels[i - 1].y + 11; });
    const letters = labels.map((l) => svg('text', { class: `end ${l.cls}`, x: l.x, y: l.y }, l.letter));
    const cursor = this.cursor !== null && times[this.cursor] && svg('line', { class: 'cursor', x1: x(times[this.cursor]), x2: x(times[this.cursor]), y1: TOP, y2: H - BOTTOM });
    fillIn(this.svg, grid, axis, marks, lines, letters, cursor);
  }

  drawTable(times) {
    const step = Math.max(1, Math.ceil(times.length / 20)), rows = [];
    for (let i = times.length - 1; i >= 0; i -= step) rows.push(i);
    fillIn(this.table, h('table', null, h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Time'), this.names.map((n, i) => h('th', { scope: 'col', class: 'num' }, mark(i), ' ', n)))),
      h('tbody', null, rows.map((r) => h('tr', null, h('th', { scope: 'row' }, clock(times[r])), this.lines.map((l) => h('td', { class: 'num' }, l[r]?.[1] == null ? '–' : this.format(l[r][1]))))))));
  }

  point(e) {
    const box = this.svg.getBoundingClientRect();
    const t = this.from + (((e.clientX - box.left) / box.width * W - LEFT) / (W - LEFT - RIGHT)) * (this.to - this.from);
    this.moveTo(this.lines[0]?.reduce((best, p, i, all) => (Math.abs(p[0] - t) < Math.abs(all[best][0] - t) ? i : best), 0) ?? null);
  }

  key(e) {
    const n = this.lines[0]?.length ?? 0, step = { ArrowLeft: -1, ArrowRight: 1, Home: -n, End: n }[e.key];
    if (!step || !n) return;
    e.preventDefault();
    this.moveTo(Math.min(n - 1, Math.max(0, (this.cursor ?? n - 1) + step)));
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => {
      if (this.cursor === null) return;
      setText(this.live, `${clock(this.lines[0][this.cursor][0])}: ${this.names.map((name, i) => `${name} ${this.lines[i][this.cursor]?.[1] == null ? 'no value' : this.format(this.lines[i][this.cursor][1])}`).join(', ')}`);
    }, 300);
  }

  moveTo(i) { this.cursor = i; this.draw(); }
}
