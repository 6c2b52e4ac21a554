// SPDX-License-Identifier: Apache-2.0
// Experiments and variants as they look: letter, colour, dash, state, traffic bar.
import { chip, h } from './dom.js';
import { percentShort } from './format.js';

const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ';

/** Colour and dash repeat after six; the letter does not. */
export const look = (index) => ({ letter: LETTERS[index] ?? String(index + 1), cls: `v${index % 6}` });

export function mark(index) {
  const { letter, cls } = look(index);
  return h('span', { class: `mark ${cls}`, 'aria-hidden': 'true' }, letter);
}

export const nameOf = (exp, index) => [mark(index), ' ', h('span', { class: 'vname' }, exp.variants[index].name)];

const states = {
  draft: ['', 'draft', 'Draft'],
  running: ['good', 'running', 'Running'],
  paused: ['warn', 'paused', 'Paused'],
  promoted: ['good', 'up', 'Promoted'],
  rolled_back: ['bad', 'back', 'Rolled back'],
  completed: ['', 'check', 'Finished'],
  archived: ['', 'box', 'Archived'],
};

export function stateChip(state) { return chip(...(states[state] ?? ['', 'draft', state])); }
export const stateWord = (state) => (states[state] ?? ['', '', state])[2];

const baking = (exp) => exp.state === 'promoted' && exp.ramp_state?.phase === 'baking';
export const serves = (exp) => exp.state === 'running' || exp.state === 'paused' || baking(exp);

/** Who gets what right now: [{index, bp, killed}], baseline for all where the experiment does not serve. */
export function effective(exp) {
  const base = exp.variants.findIndex((v) => v.name === exp.baseline);
  if (exp.state === 'promoted' && !baking(exp)) return [{ index: exp.variants.findIndex((v) => v.name === exp.winner), bp: 10000 }];
  if (!serves(exp)) return [{ index: base, bp: 10000 }];
  return exp.variants.map((v, index) => ({ index, bp: v.weight, killed: v.state === 'killed' })).filter((s) => s.bp > 0);
}

/** The share in basis points that the variant really serves. */
export function servedShare(exp, index) {
  const base = exp.variants.findIndex((v) => v.name === exp.baseline);
  return effective(exp).reduce((sum, s) => sum + ((s.killed ? base : s.index) === index ? s.bp : 0), 0);
}

/** Stacked bar, letters and patterns beside colour, and its legend in words. */
export function trafficBar(exp) {
  const parts = effective(exp);
  const bar = h('div', { class: 'bar', 'aria-hidden': 'true' }, parts.map((p) => {
    const { letter, cls } = look(p.index);
    const el = h('span', { class: `seg ${p.killed ? 'killed' : cls}` }, p.bp >= 600 && h('b', null, letter));
    el.style.flexGrow = String(p.bp);
    return el;
  }));
  const killed = new Set(parts.filter((p) => p.killed).map((p) => p.index));
  const legend = h('ul', { class: 'legend' }, exp.variants.map((v, index) => h('li', null, mark(index), ' ', h('span', { class: 'vname' }, v.name), ' ',
    h('span', { class: 'num' }, killed.has(index) ? `killed, ${percentShort(v.weight)} served by ${exp.baseline}` : percentShort(parts.find((p) => p.index === index)?.bp ?? 0)))));
  const kept = !serves(exp) && exp.state !== 'archived' && exp.variants.length > 1 &&
    h('p', { class: 'hint' }, `Weights kept: ${exp.variants.map((v, i) => `${look(i).letter} ${percentShort(v.weight)}`).join(', ')}`);
  return h('div', { class: 'traffic' }, bar, legend, kept);
}
