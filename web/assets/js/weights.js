// SPDX-License-Identifier: Apache-2.0
// The weights editor: percent in, basis points out, a preview of who moves, and
// a save that never overwrites what somebody else changed meanwhile.
import { api } from './api.js';
import { toast } from './dialog.js';
import { chip, fillIn, h, icon, setText } from './dom.js';
import { count, parsePercent, percentOf, percentShort, words } from './format.js';
import { mark, serves } from './variants.js';

const FULL = 10000;
const show = (bp) => (bp / 100).toFixed(2);
const same = (a, b) => Object.keys(b).every((k) => a[k] === b[k]);

export class WeightsEditor {
  /** saved(answer) hears of a write; the owner calls update() with what is read. */
  constructor(el, key, { saved }) {
    Object.assign(this, { el, key, saved, exp: null, etag: '', base: null, baseTag: '', inputs: new Map(), dirty: false });
    this.preview = null;
    this.asked = 0;
  }

  weightsOf(exp) { return Object.fromEntries(exp.variants.map((v) => [v.name, v.weight])); }

  /** Takes in the newest experiment; what the reader is typing stays. */
  update(exp, etag) {
    const shape = JSON.stringify([exp.variants.map((v) => [v.name, v.state]), exp.baseline, exp.state === 'archived']);
    this.exp = exp;
    this.etag = etag;
    if (this.shape !== shape) { this.shape = shape; this.build(); }
    const now = this.weightsOf(exp);
    if (!this.dirty) {
      this.base = now;
      this.baseTag = etag;
      for (const [name, input] of this.inputs) if (document.activeElement !== input || parsePercent(input.value) !== now[name]) input.value = show(now[name]);
      this.refresh();
    } else if (etag !== this.baseTag) {
      if (same(now, this.base)) this.baseTag = etag; // something else of the experiment changed
      else this.conflict();
    }
    this.note();
  }

  build() {
    this.inputs.clear();
    const killed = (v) => v.state === 'killed';
    const rows = this.exp.variants.map((v, i) => {
      const id = `w-${v.name}`;
      const input = h('input', { id, class: 'pct', inputmode: 'decimal', autocomplete: 'off', spellcheck: 'false', 'aria-describedby': 'w-sum', value: show(v.weight),
        oninput: () => this.changed(), onkeydown: (e) => this.arrow(e, v.name), onchange: () => { const bp = parsePercent(input.value); if (bp !== null) input.value = show(bp); } });
      this.inputs.set(v.name, input);
      const step = (by, word, sign) => h('button', { type: 'button', class: 'step', 'aria-label': `${word} ${v.name} by 1 percent`, disabled: killed(v) && by > 0, onclick: () => this.step(v.name, by) }, sign);
      return h('div', { class: 'wrow' }, h('label', { for: id }, mark(i), ' ', h('span', { class: 'vname' }, v.name), v.name === this.exp.baseline && h('span', { class: 'tag' }, 'baseline'), killed(v) && h('span', { class: 'tag bad' }, 'killed')),
        h('span', { class: 'stepper' }, step(-100, 'Lower', '−'), input, h('span', { class: 'unit' }, '%'), step(100, 'Raise', '+')));
    });
    this.sum = h('p', { id: 'w-sum', class: 'sum', role: 'status' });
    this.info = h('div', { class: 'preview', 'aria-live': 'polite' });
    this.clash = h('div');
    this.reason = h('input', { id: 'w-reason', maxlength: '1000', autocomplete: 'off', oninput: () => this.buttons() });
    this.reasonLabel = h('label', { class: 'block', for: 'w-reason', hidden: true }, 'Reason');
    this.reasonBox = h('div', { hidden: true }, this.reasonLabel, this.reason);
    this.problem = h('div', { role: 'alert' });
    this.save = h('button', { type: 'submit', class: 'primary' }, 'Save weights');
    this.discard = h('button', { type: 'button', onclick: () => this.reset() }, 'Discard');
    this.even = h('button', { type: 'button', class: 'quiet', onclick: () => this.evenly() }, 'Split evenly');
    this.state = h('p', { class: 'hint' });
    fillIn(this.el, h('form', { class: 'weights', novalidate: true, onsubmit: (e) => { e.preventDefault(); this.submit(); } }, rows, h('div', { class: 'sum-row' }, this.sum, this.even),
      this.info, this.clash, this.reasonBox, this.problem, h('div', { class: 'row' }, this.save, this.discard), this.state));
    this.dirty = false;
  }

  /** The typed weights in basis points, or null while one is not a percentage. */
  typed() {
    const out = {};
    for (const [name, input] of this.inputs) {
      out[name] = parsePercent(input.value);
      input.setAttribute('aria-invalid', String(out[name] === null));
    }
    return Object.values(out).includes(null) ? null : out;
  }

  arrow(e, name) {
    const by = { ArrowUp: 1, ArrowDown: -1 }[e.key];
    if (!by) return;
    e.preventDefault();
    this.step(name, by * (e.shiftKey ? 1 : 100));
  }

  /** Moves weight between a variant and the baseline, which is what a ramp is. */
  step(name, by) {
    const w = this.typed();
    if (!w) return;
    const others = Object.keys(w).filter((n) => n !== name);
    const partner = name !== this.exp.baseline ? this.exp.baseline : others.length === 1 ? others[0] : null;
    let move = Math.max(by, -w[name]);
    move = partner ? Math.min(move, w[partner]) : Math.min(move, FULL - w[name]);
    this.inputs.get(name).value = show(w[name] + move);
    if (partner) this.inputs.get(partner).value = show(w[partner] - move);
    this.changed();
  }

  evenly() {
    const live = this.exp.variants.filter((v) => v.state !== 'killed'), tomb = this.exp.variants.filter((v) => v.state === 'killed').reduce((s, v) => s + v.weight, 0);
    const each = Math.floor((FULL - tomb) / live.length);
    let rest = FULL - tomb - each * live.length;
    for (const v of live) this.inputs.get(v.name).value = show(each + (rest-- > 0 ? 1 : 0));
    this.changed();
  }

  changed() {
    const w = this.typed();
    this.dirty = !w || !same(w, this.base);
    if (!this.dirty) { this.baseTag = this.etag; this.base = this.weightsOf(this.exp); fillIn(this.clash); }
    fillIn(this.problem);
    this.refresh();
    clearTimeout(this.timer);
    if (this.dirty && w && this.total(w) === FULL) this.timer = setTimeout(() => this.ask(w), 200);
  }

  total(w) { return Object.values(w).reduce((s, v) => s + v, 0); }

  refresh() {
    const w = this.typed(), sum = w ? this.total(w) : 0;
    const off = FULL - sum, target = this.inputs.get(this.exp.baseline), room = w ? w[this.exp.baseline] + off : -1;
    const key = `${w ? sum : 'x'}`;
    if (this.sum.dataset.key !== key) {
      this.sum.dataset.key = key;
      this.sum.className = `sum ${w && off === 0 ? 'ok' : 'bad'}`;
      if (!w) fillIn(this.sum, icon('cross'), ' Percentages have at most two decimals, 0 to 100');
      else if (off === 0) fillIn(this.sum, 'Σ 100.00 % ', icon('check'));
      else fillIn(this.sum, `Σ ${percentOf(sum)}: ${percentOf(Math.abs(off))} ${off > 0 ? 'missing' : 'too much'} `, room >= 0 && room <= FULL &&
        h('button', { type: 'button', class: 'quiet small', onclick: () => { target.value = show(room); this.changed(); } }, `${off > 0 ? 'Give to' : 'Take from'} ${this.exp.baseline}`));
    }
    if (!this.dirty || !w || off !== 0) { this.preview = null; fillIn(this.info); this.asked++; }
    this.buttons();
  }

  async ask(weights) {
    const mine = ++this.asked;
    try {
      const { body } = await api('POST', `/experiments/${this.key}/weights:preview`, { body: { weights } });
      if (mine !== this.asked) return; // a newer question is on its way
      this.preview = body;
      this.showPreview(body);
    } catch (err) {
      if (mine !== this.asked) return;
      this.preview = null;
      fillIn(this.info, h('p', { class: 'notice bad' }, icon('warn'), ' ', err.message));
    }
    this.buttons();
  }

  showPreview(p) {
    const kind = p.carry_over ? chip('warn', 'warn', 'Carries over') : p.safe ? chip('good', 'check', 'Safe') : chip('', 'draft', 'Moves treatments');
    const index = (name) => this.exp.variants.findIndex((v) => v.name === name);
    const who = (name) => (index(name) < 0 ? (name || 'nobody') : [mark(index(name)), ' ', name]);
    const units = p.recent_units > 0 ? `, about ${count(p.moving_units)} of ${count(p.recent_units)} units seen here in the last hour` : '; no units were seen here in the last hour';
    fillIn(this.info, h('p', null, kind, ' ', h('strong', null, percentOf(p.moved_buckets)), ` of units move${units}.`),
      h('ul', { class: 'moves' }, p.moves.map((m) => h('li', null, who(m.from), ' → ', who(m.to), ' ', h('span', { class: 'num' }, percentOf(m.buckets))))),
      h('p', { class: 'hint' }, p.carry_over ? 'Units go from one treatment to another and take the first one’s effects along; say why.' : 'Nobody else moves.'));
  }

  buttons() {
    const needs = this.preview?.needs_reason ?? false, ready = this.dirty && this.preview !== null && !this.busy;
    this.reasonBox.hidden = !this.preview;
    this.reasonLabel.hidden = !this.preview;
    setText(this.reasonLabel, needs ? 'Reason (required)' : 'Reason (optional, kept in the audit log)');
    this.reason.required = needs;
    this.save.disabled = !ready || (needs && this.reason.value.trim() === '') || this.exp.state === 'archived';
    this.discard.disabled = !this.dirty || this.busy;
    setText(this.save, this.busy ? 'Saving…' : 'Save weights');
  }

  note() {
    const s = this.exp.state;
    setText(this.state, serves(this.exp) ? '± moves 1 % to or from the baseline; in a field, ↑ ↓ do the same and Shift makes it 0.01 %.' : s === 'archived' ? 'An archived experiment cannot be changed.' : `Kept for later: ${s === 'draft' ? 'the experiment has not started' : 'the experiment does not serve'}, so nobody moves now.`);
  }

  reset() {
    this.dirty = false;
    this.reason.value = '';
    fillIn(this.problem);
    fillIn(this.clash);
    this.base = this.weightsOf(this.exp);
    this.baseTag = this.etag;
    for (const [name, input] of this.inputs) input.value = show(this.base[name]);
    this.refresh();
  }

  async submit() {
    const weights = this.typed();
    if (this.save.disabled || !weights || this.busy) return;
    this.busy = true;
    this.buttons();
    fillIn(this.problem);
    try {
      const { body, etag } = await api('PUT', `/experiments/${this.key}/weights?wait=applied`, { ifMatch: this.baseTag, body: { weights, reason: this.reason.value.trim() || undefined } });
      this.exp = { ...this.exp, variants: this.exp.variants.map((v) => ({ ...v, weight: body.weights[v.name] ?? v.weight })) };
      this.etag = etag;
      this.reset();
      toast(`Weights saved: ${words(Object.entries(body.weights).map(([n, w]) => `${n} ${percentShort(w)}`))}.`);
      this.saved(body);
    } catch (err) {
      if (err.status === 412) await this.reread();
      else fillIn(this.problem, h('p', { class: 'notice bad' }, icon('warn'), ' ', err.message, err.requestId && h('span', { class: 'hint' }, ` Request ${err.requestId}`)));
    } finally {
      this.busy = false;
      this.buttons();
    }
  }

  async reread() {
    const { body, etag } = await api('GET', `/experiments/${this.key}`);
    this.exp = body;
    this.etag = etag;
    if (same(this.weightsOf(body), this.base)) {
      this.baseTag = etag;
      fillIn(this.problem, h('p', { class: 'notice warn' }, icon('warn'), ' The experiment changed meanwhile, its weights did not. Nothing was saved; save again if that is still what you want.'));
    } else this.conflict();
  }

  /** Was, is now, and yours, side by side. */
  conflict() {
    const now = this.weightsOf(this.exp), mine = this.typed() ?? {};
    const key = JSON.stringify([this.base, now, mine]);
    if (this.clash.dataset.key === key && this.clash.firstChild) return;
    this.clash.dataset.key = key;
    const cell = (bp, differs) => h('td', { class: 'num' }, bp == null ? '–' : differs ? h('strong', null, percentOf(bp)) : percentOf(bp));
    fillIn(this.clash, h('div', { class: 'notice warn', role: 'alert', id: 'w-conflict' },
      h('p', null, icon('warn'), ' ', h('strong', null, 'Somebody changed the weights meanwhile.'), ' Nothing of yours was saved and nothing of theirs was overwritten.'),
      h('table', null, h('thead', null, h('tr', null, ['Variant', 'When you began', 'Now', 'Yours'].map((t, i) => h('th', { scope: 'col', class: i ? 'num' : '' }, t)))),
        h('tbody', null, this.exp.variants.map((v, i) => h('tr', null, h('th', { scope: 'row' }, mark(i), ' ', v.name), cell(this.base[v.name]), cell(now[v.name], now[v.name] !== this.base[v.name]), cell(mine[v.name], mine[v.name] !== now[v.name]))))),
      h('div', { class: 'row' }, h('button', { type: 'button', onclick: () => this.reset() }, 'Take theirs'),
        h('button', { type: 'button', onclick: () => { this.base = now; this.baseTag = this.etag; fillIn(this.clash); this.changed(); } }, 'Put mine on top of theirs'))));
  }
}
