// SPDX-License-Identifier: Apache-2.0
// Rows of the audit log in words, with what differs between before and after.
import { h } from './dom.js';
import { NONE, ago, percentShort, when } from './format.js';
import { decisionNumbers } from './guardrails.js';

const verbs = {
  'experiment.set_weights': 'Set weights', 'experiment.rollback': 'Rolled back', 'experiment.pause': 'Paused', 'experiment.resume': 'Resumed',
  'experiment.start': 'Started', 'experiment.kill': 'Killed a variant', 'experiment.promote': 'Promoted a variant', 'experiment.finish': 'Finished',
  'experiment.create': 'Created', 'experiment.patch': 'Edited', 'experiment.archive': 'Archived', 'experiment.delete': 'Deleted',
  'experiment.reset-pins': 'Forgot the pins', 'experiment.reshuffle': 'Reshuffled', 'document.apply': 'Applied a document', 'document.seed': 'Seeded from the file',
  'experiment.advance': 'Advanced by hand', 'experiment.approve': 'Approved a step', 'ramp.advance': 'Advanced', 'ramp.promote': 'Promoted', 'ramp.hold': 'Held', 'ramp.continue': 'Went on', 'ramp.pause': 'Paused by the ramp',
  'ramp.rollback': 'Rolled back by a guardrail', 'ramp.kill': 'Killed by a guardrail', 'ramp.done': 'Baked', 'ramp.finish_bake': 'Baked', 'ramp.setup': 'Began to count',
  'key.create': 'Created a key', 'key.revoke': 'Revoked a key', 'upstream.create': 'Created', 'upstream.patch': 'Edited', 'upstream.delete': 'Deleted',
  'model.create': 'Created', 'model.patch': 'Edited', 'model.delete': 'Deleted',
};

export const verbOf = (row) => verbs[row.action] ?? row.action;

// The server's own bookkeeping, which follows from the rest.
const quiet = new Set(['updated_at', 'updated_revision', 'allocation', 'gen_revision', 'created_at', 'setup', 'since', 'epoch']);

const named = (v) => v !== null && typeof v === 'object' && (v.name ?? v.key);

function leaves(value, path, out) {
  if (value === null || typeof value !== 'object') { out.set(path.join(' › '), value); return; }
  for (const [k, v] of Object.entries(value)) {
    if (quiet.has(k) || (Array.isArray(value) && k === 'name')) continue;
    leaves(v, [...path, Array.isArray(value) && named(v) ? named(v) : k], out);
  }
}

const show = (path, v) => (v === undefined ? NONE : /weight$/.test(path) && typeof v === 'number' ? percentShort(v) : typeof v === 'string' ? v : JSON.stringify(v));

/** [{path, before, after}], in words, of what a row changed. */
export function differences(row) {
  const a = new Map(), b = new Map();
  leaves(row.before ?? {}, [], a);
  leaves(row.after ?? {}, [], b);
  const paths = [...new Set([...a.keys(), ...b.keys()])];
  return paths.filter((p) => a.get(p) !== b.get(p)).map((p) => ({ path: p.replace(/^variants › /, ''), before: show(p, a.get(p)), after: show(p, b.get(p)) }));
}

function detail(row) {
  if (row.before === undefined && row.after === undefined) return null;
  const all = differences(row);
  if (all.length === 0) return h('p', { class: 'hint' }, 'No visible member changed.');
  const fresh = row.before === undefined, gone = row.after === undefined;
  const line = (d) => h('li', null, h('span', { class: 'path' }, d.path), ' ', fresh ? d.after : gone ? h('del', null, d.before) : [h('del', null, d.before), ' → ', h('ins', null, d.after)]);
  if (all.length <= 4 && !fresh) return h('ul', { class: 'diff' }, all.map(line));
  return h('details', null, h('summary', null, fresh ? `${all.length} values written` : gone ? `${all.length} values removed` : `${all.length} values changed`), h('ul', { class: 'diff' }, all.map(line)));
}

/** One row as a list item; withObject names what was changed. */
export function auditItem(row, { withObject = false, link } = {}) {
  return h('li', { class: 'audit' },
    h('div', { class: 'audit-line' },
      h('strong', null, verbOf(row)), withObject && row.object && [' ', link ? h('a', { href: link }, row.object) : h('span', { class: 'mono' }, row.object)],
      h('span', { class: 'spring' }), h('span', { class: 'hint' }, row.actor), h('time', { datetime: row.time, title: when(row.time), class: 'hint' }, ago(row.time))),
    (row.reason || row.details?.decision?.text) && h('p', { class: 'reason' }, row.reason || row.details.decision.text),
    decisionNumbers(row.details),
    detail(row),
    withObject && h('p', { class: 'hint mono small' }, `revision ${row.revision}`, row.request_id && ` · request ${row.request_id}`, row.ip && ` · ${row.ip}`));
}
