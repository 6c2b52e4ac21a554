// SPDX-License-Identifier: Apache-2.0
// A ramp as people see it: its steps, where it is, and in words why it is there.
import { chip, h, icon } from './dom.js';
import { ago, count, percentShort, plural, rate, when } from './format.js';

const phases = {
  ready_wait: ['', 'draft', 'Waiting until it is ready'], ramping: ['good', 'running', 'Ramping'], holding: ['warn', 'paused', 'Holding'],
  baking: ['good', 'up', 'Baking'], done: ['good', 'check', 'Done'],
};

/** 75 → "1 min 15 s". */
export function span(s) {
  if (typeof s !== 'number' || !Number.isFinite(s)) return '–';
  if (s < 60) return `${Math.round(s)}\u00a0s`;
  if (s < 3600) return `${Math.floor(s / 60)}\u00a0min${s % 60 >= 1 && s < 600 ? ` ${Math.round(s % 60)}\u00a0s` : ''}`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)}\u00a0h${s % 3600 >= 60 ? ` ${Math.floor(s % 3600 / 60)}\u00a0min` : ''}`;
  return `${Math.round(s / 86400)} days`;
}

/** A sentence as the decision has it, for a line of its own. */
export const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) : '');

/** The phase of a report as a chip; a ramp that a person or a fault stopped says so. */
export function phaseChip(r) {
  if (r.state === 'rolled_back') return chip('bad', 'back', 'Rolled back');
  if (r.state === 'paused') return chip('warn', 'paused', 'Paused');
  return chip(...(phases[r.phase] ?? ['', 'draft', r.phase || 'No ramp']));
}

/** What became of each step: done | now | held | back | next. */
export function stepState(r, index) {
  if (r.state === 'rolled_back') return index <= r.step ? 'back' : 'next';
  if (r.phase === 'baking' || r.phase === 'done' || index < r.step) return 'done';
  if (index > r.step) return 'next';
  return r.phase === 'holding' || r.state === 'paused' ? 'held' : 'now';
}

const stepWords = { done: ['check', 'passed'], now: ['running', 'now'], held: ['paused', 'held'], back: ['back', 'taken back'], next: ['draft', 'to come'] };

/** When steps began, by index, from the audit rows of the ramp (newest first). */
export function begun(rows, r) {
  const at = {};
  for (const row of rows) {
    const s = row.after?.ramp_state;
    if (s && typeof s.step === 'number' && s.step >= 0 && (row.after.generation ?? r.generation) === r.generation) at[s.step] = s.since ?? row.time;
  }
  if (r.step >= 0 && r.since) at[r.step] ??= r.since;
  return at;
}

function expected(r, index) {
  const f = r.forecast?.find((x) => x.step === index);
  if (!f) return null;
  if (!f.ok) return h('span', { class: 'worse' }, 'not in reach');
  return `about ${span(f.time_s)}`;
}

/** The timeline: ready, the steps, the bake. */
export function timeline(r, at, now = Date.now()) {
  const item = (state, title, lines) => {
    const [name, word] = stepWords[state];
    return h('li', { class: `rung ${state}`, 'aria-current': state === 'now' || state === 'held' ? 'step' : undefined },
      h('span', { class: 'rung-dot', 'aria-hidden': 'true' }, icon(name)), h('strong', null, title), h('span', { class: 'rung-word' }, word), lines.filter(Boolean).map((l) => h('span', { class: 'hint' }, l)));
  };
  const waiting = r.phase === 'ready_wait';
  const steps = r.steps.map((s, i) => {
    const state = stepState(r, i), began = at[i];
    return item(state, percentShort(s.weight), [
      began && state !== 'next' && h('time', { datetime: began, title: when(began) }, state === 'now' || state === 'held' ? `for ${span((now - Date.parse(began)) / 1000)}` : ago(began, now)),
      state === 'next' && expected(r, i),
      s.approve && (r.approved >= i ? 'approved' : 'needs approval'),
    ]);
  });
  const over = r.phase === 'done';
  return h('ol', { class: 'rungs' },
    item(waiting ? (r.state === 'paused' ? 'held' : 'now') : r.state === 'rolled_back' && r.step < 0 ? 'back' : 'done', 'Ready', [waiting && r.since && `for ${span((now - Date.parse(r.since)) / 1000)}`]),
    steps,
    item(over ? 'done' : r.phase === 'baking' && r.state === 'promoted' ? 'now' : 'next', 'Bake', [r.phase === 'baking' && r.since && `for ${span((now - Date.parse(r.since)) / 1000)}`]));
}

/** The one sentence, what it waits for, and what may be wrong. */
export function reasons(r) {
  const text = r.decision?.text;
  const calm = r.phase === 'ramping' || r.phase === 'baking' || r.phase === 'done';
  const more = (r.why_not ?? []).filter((w) => w !== text);
  const notes = [...(r.warnings ?? []), ...['preflight', 'ready', 'head_room'].map((k) => r[k]?.text).filter((t) => t && t !== text && !more.includes(t))];
  return h('div', { class: 'reasons', role: 'status' },
    text && h('p', { class: `lead ${calm && r.state !== 'rolled_back' && r.state !== 'paused' ? '' : 'held'}` }, sentence(text)),
    more.length > 0 && [h('p', { class: 'hint' }, r.state === 'running' ? 'Why it is not advancing:' : 'Beside that:'), h('ul', { class: 'why' }, more.map((w) => h('li', null, w)))],
    r.approval && r.decision?.code !== 'approval' && h('p', { class: 'notice warn' }, icon('warn'), ` The step to ${percentShort(r.approval.weight)} waits for a person to approve it.`),
    notes.length > 0 && h('ul', { class: 'why hint' }, notes.map((w) => h('li', null, w))));
}

/** The report that the last decision of a rolled-back ramp leaves, from its audit row; null without one. */
export function aftermath(exp, rows) {
  const row = rows.find((x) => x.details?.decision?.action === 'rollback'), i = row?.details.input;
  if (!i || exp.state !== 'rolled_back') return null;
  return { experiment: exp.key, generation: exp.generation, state: 'rolled_back', phase: i.phase, variant: i.treatments?.find((t) => t.ramping)?.name, step: i.step, steps: i.steps ?? [], baseline: exp.baseline,
    decision: row.details.decision, arms: [], treatments: i.treatments ?? [], leader: row.details.replica, supervised: true, over: true };
}

/** Who decides, from how much, and how old it is. */
export function footing(r) {
  if (r.over) return h('p', { class: 'hint' }, `As decided by ${r.leader || 'a replica'}. The history has every decision with its numbers.`);
  const ramping = r.arms?.find((a) => a.name === r.variant), base = r.arms?.find((a) => a.baseline);
  const arm = (a) => a && [h('dt', null, a.name), h('dd', null, `${plural(a.units, 'unit')}, ${plural(a.started, 'request')} in this step, ${rate(a.rate)}/s`,
    a.ready !== undefined && `, ${plural(a.ready, 'ready endpoint')}`, a.not_ready && h('span', { class: 'tag bad' }, 'not ready'), a.tripped > 0 && h('span', { class: 'tag bad' }, `breaker open on ${plural(a.tripped, 'replica')}`))];
  return h('dl', { class: 'facts footing' },
    [arm(ramping), arm(base)].filter(Boolean).map((d) => h('div', null, d)),
    h('div', null, h('dt', null, 'Decided by'), h('dd', null, r.supervised ? `${r.leader || 'a replica'}, from ${plural(r.ticks, 'second')} of ${plural(r.replicas, 'replica')}${r.suspended ? `, ${count(r.suspended)} left out` : ''}` : h('strong', { class: 'worse' }, 'nobody: no replica leads'))),
    typeof r.data_age_s === 'number' && h('div', null, h('dt', null, 'Newest trial'), h('dd', null, `${span(r.data_age_s)} ago`)),
    r.srm?.text && h('div', null, h('dt', null, 'Sample ratio'), h('dd', { class: r.srm.alarm ? 'worse' : undefined }, r.srm.text)),
    r.heavy?.length > 0 && h('div', null, h('dt', null, 'Heavy units'), h('dd', null, r.heavy.map((u) => `${u.id || u.pin} ${(u.share * 100).toFixed(0)}\u00a0%`).join(', '), ' of the requests; they stay on the baseline in early steps')));
}

/** The forecast of the steps to come. */
export function forecastRows(list) {
  return list.map((f) => h('tr', null, h('th', { scope: 'row' }, percentShort(f.weight), f.approve && h('span', { class: 'tag' }, 'needs approval')),
    h('td', { class: 'num' }, `${rate(f.rate)}/s`), h('td', { class: 'num' }, count(f.users)), h('td', { class: 'num' }, f.ok ? `about ${span(f.time_s)}` : h('span', { class: 'worse' }, 'not in reach')), h('td', null, f.text)));
}
