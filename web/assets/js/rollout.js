// SPDX-License-Identifier: Apache-2.0
// The rollout of one experiment on its page: ramp, guardrails, and before the
// start what the start would bring.
import { api, get } from './api.js';
import { advance, approve, promote } from './actions.js';
import { toast } from './dialog.js';
import { actionButton, byId, errorState, fillIn, h, icon, refresh, setText, tableRegion } from './dom.js';
import { NONE, ratio } from './format.js';
import { guardrailHead, guardrailRows, guardrailSummary } from './guardrails.js';
import { aftermath, begun, footing, forecastRows, phaseChip, reasons, sentence, timeline } from './ramp.js';

const num = (text, title) => ({ text, num: true, title });
const rolling = (exp) => Boolean(exp.ramp || exp.ramp_state || exp.guardrails);
const before = (exp) => exp.state === 'draft' || exp.state === 'rolled_back';

/** The verbs of a ramp: {name: null | why not}. */
export function allowedRamp(exp, r) {
  const stands = exp.state === 'paused' ? 'it is paused; resume it first' : 'the ramp takes no more steps';
  const on = exp.state === 'running' && ['ready_wait', 'ramping', 'holding'].includes(r.phase), baking = exp.state === 'promoted' && r.phase === 'baking';
  const failed = (r.treatments ?? []).some((t) => t.name === r.variant && (t.verdicts ?? []).some((v) => v.decision === 'FAIL' && v.action !== 'warn')) ? 'a guardrail has failed; roll back, or change the guardrail' : null;
  return { advance: on || baking ? failed : stands, promote: on || (exp.state === 'paused' && r.phase !== 'done') ? failed : stands, approve: on && r.approval ? null : 'no step waits for approval' };
}

export class Rollout {
  /** act(run, …args) runs an action of the page; rows() are the audit rows. */
  constructor(key, { act, rows }) {
    Object.assign(this, { key, act, rows, report: null, shown: '', planned: '' });
  }

  /** Asks how the rollout stands; exp is the experiment as of now. */
  async update(exp) {
    this.report = rolling(exp) && !before(exp) ? await this.ask() : aftermath(exp, this.rows());
    byId('rollout').hidden = !this.report?.phase;
    byId('guard').hidden = !this.report?.treatments?.length;
    byId('plan').hidden = !(rolling(exp) && before(exp));
    if (this.report) this.show(exp, this.report);
    if (!byId('plan').hidden) await this.plan(exp);
  }

  async ask() { return (await get(`/experiments/${this.key}/ramp`)).body; }

  show(exp, r) {
    if (r.phase) {
      fillOnce(byId('ramp-phase'), phaseChip(r));
      refresh(byId('ramp'), timeline(r, begun(this.rows(), r)), reasons(r), footing(r));
      this.buttons(exp, r);
    }
    setText(byId('guard-summary'), guardrailSummary(r.treatments));
    refresh(byId('guardrails'), tableRegion('Guardrails', guardrailHead, guardrailRows(r.treatments), 'guards'));
  }

  buttons(exp, r) {
    const may = allowedRamp(exp, r), state = JSON.stringify([exp.state, r.phase, r.step, r.over, may]);
    if (state === this.shown) return;
    this.shown = state;
    const button = (text, run, why, cls) => actionButton(text, { run: () => this.act(run, this.report), why, cls, tell: toast });
    fillIn(byId('ramp-actions'), r.over ? null : [r.approval && button('Approve step…', approve, may.approve, 'primary'), button('Advance…', advance, may.advance), button('Promote…', promote, may.promote)]);
  }

  /** What a start would bring; asked again when the experiment has changed. */
  async plan(exp) {
    if (this.planned === `${exp.revision}`) return;
    this.planned = `${exp.revision}`;
    const el = byId('forecast');
    if (!exp.ramp) { fillIn(el, h('p', { class: 'hint pad' }, 'It has no ramp: the weights hold from the start.')); return; }
    try {
      const { body } = await get(`/experiments/${this.key}/forecast`);
      const list = body.steps ?? [];
      fillIn(el, list.length ? tableRegion('Forecast of the steps', ['Step', num('Requests', 'of the ramping variant'), num('Users', 'distinct, in the step'), num('Duration', 'if it is as good as the baseline; about half of all rollouts take longer'), ''], forecastRows(list))
        : null, h('p', { class: 'pad' }, sentence(body.text), '.'), (body.warnings ?? []).map((w) => h('p', { class: 'notes' }, w)));
    } catch (err) {
      fillIn(el, errorState(err, () => { this.planned = ''; }));
    }
  }

  /** Sends the probes of the preflight and shows what they found. */
  async preflight(button) {
    const el = byId('preflight');
    button.setAttribute('aria-disabled', 'true');
    fillIn(el, h('p', { class: 'hint pad' }, 'Sending about 15 requests to each variant…'));
    try {
      fillIn(el, preflightResult((await api('POST', `/experiments/${this.key}:preflight`, { body: {}, timeout: 120_000 })).body));
    } catch (err) {
      fillIn(el, errorState(err));
    }
    button.removeAttribute('aria-disabled');
  }
}

function fillOnce(el, node) {
  if (el.textContent !== node.textContent) fillIn(el, node);
}

const results = { passed: ['good', 'passes'], failed: ['bad', 'fails'], skipped: ['', 'not asked'] };

/** The outcome of a preflight: a sentence, then how each variant answered. */
export function preflightResult(p) {
  const cell = (one) => {
    const [cls, word] = results[one?.state] ?? results.skipped;
    return h('td', null, h('span', { class: `tag ${cls}` }, word), one?.blocks && h('strong', { class: 'worse' }, ' stands in the way'), one?.text && h('small', { class: 'sub' }, one.text));
  };
  return [h('p', { class: `notice ${p.ok ? 'good' : 'bad'}` }, icon(p.ok ? 'check' : 'warn'), ' ', p.text),
    tableRegion('Preflight', ['Requests that…', num('Share', 'of the live requests'), ...p.variants], p.probes.map((one) => h('tr', null, h('th', { scope: 'row' }, one.asks || one.name, one.text && h('small', { class: 'sub' }, one.text)),
      h('td', { class: 'num' }, typeof one.share === 'number' ? ratio(one.share) : NONE), p.variants.map((name) => cell(one.results.find((x) => x.variant === name))))))];
}
