// SPDX-License-Identifier: Apache-2.0
// Guardrails as a table: what each measures, what it is held against, and how far
// the proof has come either way.
import { chip, h, svg } from './dom.js';
import { NONE, count, plural } from './format.js';
import { span } from './ramp.js';

const titles = {
  error: 'Errors', rejected: 'Rejected requests', slow_ttfa: 'Slow first answer', slow_ttft: 'Slow first token', slow_total: 'Slow answers', slow_tpot: 'Slow tokens',
  truncated: 'Truncated answers', empty: 'Empty answers', invalid_json: 'Invalid JSON', invalid_tool_call: 'Invalid tool calls', reasoning_leak: 'Reasoning in the answer',
  prompt_leak: 'Leaked system prompt', finish_length: 'Cut by length', canceled: 'Canceled', cost_per_request: 'Cost per request', input_tokens: 'Input tokens',
  output_tokens: 'Output tokens', output_chars: 'Output characters', tpot: 'Time per token', waiting: 'Waiting in the engine', kv_use: 'KV cache in use', preemptions: 'Preemptions', restarts: 'Restarts',
};

const codes = {
  relative: 'against the baseline', absolute: 'against its fixed bound', over_max: 'over its limit', under_max: 'under its limit', lift: 'against the baseline',
  no_data: 'no data yet', no_baseline: 'nothing to compare with', not_comparable: 'its servers carry over twice the load', few_bad_trials: 'too few bad trials to act on',
  few_bad_units: 'too few users with a bad trial', small_effect: 'worse, but too little to matter', as_baseline: 'the baseline does no better', few_units: 'too few users yet',
  baseline_unhealthy: 'the baseline itself fails', inconclusive: 'not proved either way', unmeasured: 'the baseline is not measured yet',
};

const actions = { rollback: 'rolls back', pause: 'pauses', warn: 'only warns', kill: 'kills the variant', hold: 'holds' };

/** passing | breached | pending, as a chip. */
export function verdictChip(v) {
  if (v.decision === 'FAIL') return chip('bad', 'cross', 'Breached');
  if (v.decision === 'PASS') return chip('good', 'check', 'Passing');
  return chip('', 'draft', 'Pending');
}

const percent = (x) => (typeof x === 'number' ? `${(x * 100).toFixed(x !== 0 && Math.abs(x) < 0.1 ? 2 : 1)}\u00a0%` : NONE);
const signed = (x) => (typeof x === 'number' ? `${x < 0 ? '−' : '+'}${Math.abs(x * 100).toFixed(0)}\u00a0%` : NONE);

/** {value, bound, base, range} in words; the same arithmetic as guardrail.Verdict.Reading. */
export function reading(v) {
  const b = v.bound ?? {}, c = v.canary ?? {}, o = v.baseline ?? {};
  if (v.kind === 'rate') {
    const base = o.n > 0 ? o.k / o.n : null;
    const bound = base === null ? b.max_rate : Math.max((b.tolerate_ratio ?? 0) * base, b.min_effect_rate ?? 0);
    return { value: c.n > 0 ? percent(c.k / c.n) : NONE, bound: bound ? `≤ ${percent(bound)}` : NONE, base: base === null ? NONE : percent(base) };
  }
  if (v.kind === 'mean') {
    const i = v.interval;
    return { value: v.code === 'no_data' ? NONE : signed(v.value), bound: `≤ ${signed(b.max)}`, base: NONE, range: i && Number.isFinite(i.lower) && Number.isFinite(i.upper) && `${signed(i.lower)} to ${signed(i.upper)}` };
  }
  const show = (x) => (typeof x === 'number' ? String(Number(x.toPrecision(4))) : NONE);
  return { value: v.code === 'no_data' ? NONE : show(v.value), bound: `≤ ${show(b.max ?? 0)}`, base: NONE };
}

/** How far the proofs have come, 0 to 1: {harm, health}; null for what has none. */
export function proofs(v) {
  const e = v.log_e;
  if (v.kind !== 'rate' || !e || !e.fail_at) return null;
  const part = (x, at) => (at > 0 && Number.isFinite(x) ? Math.min(Math.max(x / at, 0), 1) : 0);
  return { harm: part(Math.max(e.fail_rel ?? 0, e.fail_abs ?? 0), e.fail_at), health: part(Math.max(e.pass_rel ?? 0, e.pass_abs ?? 0), e.pass_at) };
}

function proofBar(v) {
  const p = proofs(v);
  if (!p) return NONE;
  const row = (y, cls, x) => [svg('rect', { x: 0, y, width: 100, height: 5, rx: 2, class: 'proof-back' }), svg('rect', { x: 0, y, width: Math.round(x * 100), height: 5, rx: 2, class: cls })];
  const words = `proof of health ${Math.round(p.health * 100)} %, of harm ${Math.round(p.harm * 100)} %`;
  return [svg('svg', { class: 'proof', viewBox: '0 0 100 14', width: 100, height: 14, role: 'img', 'aria-label': words }, row(1, 'proof-good', p.health), row(8, 'proof-bad', p.harm)),
    h('small', { class: 'delta' }, `✓ ${Math.round(p.health * 100)} % · ✗ ${Math.round(p.harm * 100)} %`)];
}

const trials = (c, base) => (c?.n === undefined && c?.k === undefined ? NONE : [`${count(c.k ?? 0)} of ${count(c.n ?? 0)}`, h('small', { class: 'delta' }, `baseline ${count(base?.k ?? 0)} of ${count(base?.n ?? 0)}`)]);

function units(v) {
  if (!v.need_units) return v.units ? count(v.units) : NONE;
  const bad = v.bad_units > 0 && h('small', { class: 'delta' }, `${count(v.bad_units)} with a bad one`);
  return [v.units >= v.need_units ? `${count(v.need_units)} or more` : `${count(v.units)} of ${count(v.need_units)}`, bad];
}

function needs(t, v) {
  const n = t.needs?.find((x) => x.guardrail === v.name);
  if (!n || v.decision !== 'OPEN') return null;
  if (n.trials < 0) return h('small', { class: 'delta worse' }, 'no number of trials would do');
  const wants = [n.trials > 0 && `about ${plural(n.trials, 'trial')} more`, n.time_s > 0 && `about ${span(n.time_s)}`].filter(Boolean);
  return wants.length > 0 && h('small', { class: 'delta' }, wants.join(', '));
}

const num = (text, title) => ({ text, num: true, title });

export const guardrailHead = ['Guardrail', 'State', num('Value', 'the rate of the variant, or the change of its mean'), num('Bound', 'what the value is held against; a proof must show that it is beyond'),
  num('Baseline'), num('Bad trials', 'bad of all in this step'), num('Users', 'distinct, with a trial in this step'), num('Proof', 'how far the evidence has come: health above, harm below'), 'If breached'];

/** A row per guardrail of each treatment; several treatments are named. */
export function guardrailRows(treatments) {
  const many = treatments.length > 1;
  return treatments.flatMap((t) => (t.verdicts ?? []).map((v) => {
    const r = reading(v);
    return h('tr', null,
      h('th', { scope: 'row' }, titles[v.metric] ?? v.metric, v.name !== v.metric && h('small', { class: 'sub' }, v.name), many && h('small', { class: 'sub' }, `of ${t.name}`), v.require === 'no_fail' && h('span', { class: 'tag', title: 'a step needs no proof of health of it' }, 'watched')),
      h('td', null, verdictChip(v), h('small', { class: 'sub' }, codes[v.code] ?? v.code, v.note === 'light_load' && ', at light load'), needs(t, v)),
      h('td', { class: 'num' }, r.value, r.range && h('small', { class: 'delta' }, r.range)), h('td', { class: 'num' }, r.bound), h('td', { class: 'num' }, r.base),
      h('td', { class: 'num' }, trials(v.canary, v.baseline)), h('td', { class: 'num' }, units(v)), h('td', { class: 'num' }, proofBar(v)), h('td', null, actions[v.action] ?? v.action));
  }));
}

/** "9 guardrails: 1 breached, 3 passing, 5 pending". */
export function guardrailSummary(treatments) {
  const all = treatments.flatMap((t) => t.verdicts ?? []);
  const n = (d) => all.filter((v) => v.decision === d).length;
  return `${plural(all.length, 'guardrail')}: ${[[n('FAIL'), 'breached'], [n('PASS'), 'passing'], [n('OPEN'), 'pending']].filter(([x]) => x > 0).map(([x, w]) => `${x} ${w}`).join(', ')}`;
}

/** The numbers behind a decision of the audit: rows of what spoke for and against. */
export function decisionNumbers(details) {
  const list = details?.input?.treatments ?? [];
  const rows = list.flatMap((t) => (t.verdicts ?? []).filter((v) => v.decision !== 'OPEN' || (v.canary?.n ?? 0) > 0).map((v) => {
    const r = reading(v);
    return h('li', null, h('span', { class: 'path' }, list.length > 1 ? `${t.name} ${titles[v.metric] ?? v.metric}` : titles[v.metric] ?? v.metric), ` ${r.value} (${r.bound}${r.base !== NONE ? `, baseline ${r.base}` : ''})`,
      v.canary?.n > 0 && `, ${count(v.canary.k ?? 0)} of ${count(v.canary.n)} bad`, v.decision === 'FAIL' ? h('strong', { class: 'worse' }, ' breached') : v.decision === 'PASS' ? ' passing' : ' pending');
  }));
  const facts = [typeof details?.input?.elapsed_s === 'number' && `after ${span(details.input.elapsed_s)} in the step`, typeof details?.input?.units === 'number' && `${plural(details.input.units, 'user')} of the variant`, details?.replica && `decided by ${details.replica}`].filter(Boolean);
  return rows.length || facts.length ? h('details', null, h('summary', null, 'The numbers behind it'), facts.length > 0 && h('p', { class: 'hint' }, facts.join(', ')), h('ul', { class: 'diff' }, rows)) : null;
}

