// SPDX-License-Identifier: Apache-2.0
// The state changes of one experiment, each behind one dialog that says exactly
// what happens, with numbers.
import { api } from './api.js';
import { confirmAction, reasonField, toast } from './dialog.js';
import { h } from './dom.js';
import { percentShort, plural, words } from './format.js';
import { effective, servedShare } from './variants.js';

/** The verbs of an experiment's state: {name: null | why not}. */
export function allowed(exp) {
  const s = exp.state;
  const off = { draft: 'it has not started', completed: 'it is finished and the baseline serves', archived: 'it is archived', rolled_back: 'it is rolled back already', promoted: 'it is promoted', running: 'it is running', paused: 'it is paused' }[s] ?? s;
  const unless = (...ok) => (ok.includes(s) ? null : off);
  return { start: unless('draft', 'rolled_back', 'completed', 'promoted'), pause: unless('running'), resume: unless('paused'), rollback: unless('running', 'paused', 'promoted'), kill: unless('running', 'paused', 'promoted') };
}

const verb = async (key, name, ifMatch, body) => (await api('POST', `/experiments/${key}:${name}?wait=applied`, { ifMatch, body })).body;

const reasonOf = (form) => { const r = (form.get('reason') ?? '').trim(); return r ? { reason: r } : {}; };

/** How many units the other variants have now: what a rollback returns. */
function away(exp, live) {
  const base = exp.variants.findIndex((v) => v.name === exp.baseline);
  const share = 10000 - servedShare(exp, base);
  const arms = effective(exp).filter((p) => !p.killed && p.index !== base).map((p) => ({ ...p, name: exp.variants[p.index].name, arm: live.find((a) => a.variant === exp.variants[p.index].name) }));
  return { share, units: arms.reduce((n, a) => n + (a.arm?.units ?? 0), 0), rps: arms.reduce((n, a) => n + (a.arm?.rps_1m ?? 0), 0), names: arms.map((a) => a.name) };
}

/** What the baseline's servers would carry after a rollback; null where it is not known. */
function takesBack(r) {
  const c = r?.rollback_cost;
  if (!c) return null;
  return h('li', { class: c.head_room ? undefined : 'worse' }, `It costs: ${c.text}${/[.!]$/.test(c.text) ? '' : '.'}`);
}

/** ctx: {exp, etag, live(): arms, report(): the rollout's, or null}. Each resolves to the new experiment, or undefined. */
export function rollback({ exp, live, report }) {
  const m = away(exp, live());
  return confirmAction({
    title: `Roll back to ${exp.baseline}?`, action: `Roll back to ${exp.baseline}`, danger: true,
    content: [h('ul', null,
      h('li', null, m.names.length ? [h('strong', null, percentShort(m.share)), ` of units are on ${words(m.names)} now. They go back to ${exp.baseline} within about 1\u00a0s: `, h('strong', null, `about ${plural(m.units, 'unit')}`), ' seen in the last hour on this replica, ', `${m.rps.toFixed(1)}\u00a0requests/s.`] : `Everybody is on ${exp.baseline} already; the experiment ends its generation.`),
      h('li', null, `${exp.baseline} then serves everybody. Pins and stickiness do not hold anybody back.`),
      takesBack(report?.()),
      h('li', null, 'Streams in flight finish on the variant that they began with.'),
      h('li', null, `The weights are kept (${words(exp.variants.map((v) => `${v.name} ${percentShort(v.weight)}`))}). Starting again opens generation ${exp.generation + 1}.`)),
    reasonField()],
    run: async (form) => {
      const out = await verb(exp.key, 'rollback', '*', reasonOf(form));
      toast(`Rolled back: ${exp.baseline} serves everybody.`);
      return out;
    },
  });
}

export function pause({ exp }) {
  return confirmAction({
    title: `Pause ${exp.key}?`, action: 'Pause',
    content: [h('p', null, exp.kind === 'canary' ? 'The weights stay as they are and everybody keeps the variant that they have; a ramp stands still.' : 'Nobody new is enrolled; who has a variant keeps it.'), exp.ramp_state && h('p', null, 'Only a person starts the ramp again; guardrails go on watching and still roll back.'), h('p', null, 'Nobody moves. To take traffic off a variant, roll back.'), reasonField()],
    run: async (form) => { const out = await verb(exp.key, 'pause', '*', reasonOf(form)); toast('Paused.'); return out; },
  });
}

export function resume({ exp, etag }) {
  return confirmAction({
    title: `Resume ${exp.key}?`, action: 'Resume',
    content: [exp.ramp_state && h('p', null, 'The ramp goes on in the step where it stopped; its trials begin anew.'), h('p', null, `It runs on with its weights: ${words(exp.variants.map((v) => `${v.name} ${percentShort(v.weight)}`))}.`), reasonField()],
    run: async (form) => { const out = await verb(exp.key, 'resume', etag, reasonOf(form)); toast('Resumed.'); return out; },
  });
}

export function startExperiment({ exp, etag }) {
  const again = exp.state !== 'draft';
  const moved = exp.variants.filter((v) => v.name !== exp.baseline && v.weight > 0);
  return confirmAction({
    title: again ? `Start ${exp.key} again?` : `Start ${exp.key}?`, action: again ? 'Start again' : 'Start',
    content: [h('ul', null, again && h('li', null, `A new generation begins: ${exp.generation + 1}. Kills of the last one do not hold in it.`),
      h('li', null, moved.length ? [`${words(moved.map((v) => `${percentShort(v.weight)} to ${v.name}`))}, the rest stays on ${exp.baseline}, at once.`] : `${exp.baseline} keeps everybody until the weights change.`)), reasonField()],
    run: async (form) => { const out = await verb(exp.key, 'start', etag, reasonOf(form)); toast('Started.'); return out; },
  });
}

export function kill({ exp, live }, index) {
  const v = exp.variants[index], arm = live().find((a) => a.variant === v.name);
  return confirmAction({
    title: `Kill ${v.name}?`, action: `Kill ${v.name}`, danger: true,
    content: [h('ul', null,
      h('li', null, h('strong', null, percentShort(servedShare(exp, index))), ` of units, `, h('strong', null, `about ${plural(arm?.units ?? 0, 'unit')}`), ` seen in the last hour on this replica, get ${exp.baseline} within about 1\u00a0s.`),
      h('li', null, 'Nobody else moves: its share stays reserved.'),
      h('li', null, `It cannot come back in generation ${exp.generation}, only by starting the experiment again.`),
      h('li', null, 'Streams in flight finish.')), reasonField()],
    run: async (form) => { const out = await verb(exp.key, 'kill', '*', { variant: v.name, ...reasonOf(form) }); toast(`Killed ${v.name}: its units get ${exp.baseline}.`); return out; },
  });
}

/** Why the ramp does not go on by itself: [] where only a person's word is missing. */
export function unproved(r) {
  const d = r.decision ?? {};
  if (['advance', 'promote', 'finish_bake'].includes(d.action) || ['approval', 'max_weight'].includes(d.code)) return [];
  const open = (r.treatments.find((t) => t.ramping)?.verdicts ?? []).filter((v) => v.decision === 'OPEN' && v.require !== 'no_fail' && v.action !== 'warn').map((v) => `${v.name} is not proved yet`);
  return open.length ? open : [d.text || 'nothing is counted yet'];
}

/** The box and the reason that going on without proof needs. */
const insist = (missing, what) => [missing.length > 0 && h('div', { class: 'notice warn' }, h('p', null, `It is not proved that this is safe: ${missing.join('; ')}.`),
  h('label', { class: 'check' }, h('input', { type: 'checkbox', name: 'force', required: true }), what)), reasonField(missing.length > 0)];

const forced = (form) => ({ ...(form.get('force') && { force: true }), ...reasonOf(form) });

/** The next step now, by hand; after the last one the bake, and from the bake its end. */
export function advance({ exp, etag }, r) {
  const next = r.steps[r.step + 1], now = r.step < 0 ? 0 : r.steps[r.step].weight;
  const bakes = r.phase !== 'baking' && !next, to = r.phase === 'baking' ? 'the end of its bake' : bakes ? 'its bake' : percentShort(next.weight);
  return confirmAction({
    title: `Advance ${r.variant} to ${to}?`, action: 'Advance',
    content: [h('ul', null,
      r.phase === 'baking' ? h('li', null, `Everybody gets ${r.variant}, the holdback too, and nothing watches it any more.`)
        : bakes ? h('li', null, `It counts as promoted; the holdback stays on ${exp.baseline} for comparison.`)
          : h('li', null, h('strong', null, percentShort(next.weight - now)), ` of units move from ${exp.baseline} to ${r.variant}; nobody else moves.`),
      r.phase !== 'baking' && h('li', null, 'The trials begin anew, and the guardrails with them.')), insist(unproved(r), 'Advance all the same')],
    run: async (form) => { const out = await verb(exp.key, 'advance', etag, forced(form)); toast('Advanced.'); return out; },
  });
}

/** Lets the ramp take the step that waits for a person, when its guardrails pass. */
export function approve({ exp, etag }, r) {
  return confirmAction({
    title: `Approve the step to ${percentShort(r.approval.weight)}?`, action: 'Approve',
    content: [h('p', null, `${r.variant} gets ${percentShort(r.approval.weight)} of units as soon as everything else lets it; nothing moves before.`), reasonField()],
    run: async (form) => { const out = await verb(exp.key, 'approve', etag, reasonOf(form)); toast('Approved.'); return out; },
  });
}

/** Everybody but the holdback to the variant, without the steps that are left. */
export function promote({ exp, etag }, r) {
  return confirmAction({
    title: `Promote ${r.variant}?`, action: `Promote ${r.variant}`,
    content: [h('ul', null, h('li', null, `Everybody gets ${r.variant}. The steps that are left are skipped.`)), insist(unproved(r), 'Promote all the same')],
    run: async (form) => { const out = await verb(exp.key, 'promote', etag, { variant: r.variant, ...forced(form) }); toast(`Promoted ${r.variant}.`); return out; },
  });
}
