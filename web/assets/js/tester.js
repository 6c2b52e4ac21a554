// SPDX-License-Identifier: Apache-2.0
// The assignment tester: which variant a unit gets, and why, in words.
import { get } from './api.js';
import { byId, errorState, fillIn, h } from './dom.js';
import { ago, when } from './format.js';
import { mark } from './variants.js';

const reasons = {
  bucket: 'its bucket belongs to the variant', pin: 'it is pinned to the variant', merged: 'a pin of its session was taken over', evicted: 'its own variant is masked or killed, so it gets the baseline',
  targeting: 'the targeting leaves it out', no_unit: 'there is no unit', holdout: 'it is in the hold-out', layer: 'its slice belongs to another experiment', not_running: 'the experiment does not run',
  rolled_back: 'the experiment is rolled back', promoted: 'the winner serves everybody', unsupervised: 'nobody supervises the experiment at the moment', blocked: 'its bucket is blocked',
  enrolment_paused: 'enrolment is paused', unallocated: 'its bucket belongs to no variant', killed: 'the variant is killed', not_ready: 'the variant is not ready',
  provisional: 'the pins cannot be read right now, so the table decides', random: 'it is drawn for each request', fixed: 'a segment is fixed to the variant', default: 'no experiment applies',
};

function answer(a, curl, index) {
  const pair = (k, v) => h('div', null, h('dt', null, k), h('dd', null, v));
  const pin = a.pin ? `${a.pin.variant}, generation ${a.pin.generation}${a.pin.excluded ? ', left out of the analysis' : ''}${a.pin.merged ? ', merged' : ''}` : a.pin_error ? a.pin_error : 'none';
  return [h('p', { class: 'answer' }, index >= 0 && [mark(index), ' '], h('strong', null, a.variant), ` because ${reasons[a.reason] ?? a.reason}`, ' ', h('code', null, a.reason)),
    h('dl', { class: 'facts' }, pair('Bucket', `${a.bucket} of 10,000`), pair('Owner of the bucket', a.owner || 'none'), pair('Contested', a.contested ? 'yes: the owner changed in this generation' : 'no'),
      pair('Pin', pin), pair('Analysed', a.analysed ? 'yes' : 'no'), pair('Hashed as', h('code', null, a.unit)),
      a.last_change && pair('Last change', h('span', { title: when(a.last_change.time) }, `${a.last_change.action} by ${a.last_change.actor}, ${ago(a.last_change.time)}`))),
    h('div', { class: 'scroll', role: 'region', 'aria-label': 'The same with curl', tabindex: '0' }, h('pre', null, curl))];
}

const quote = (s) => `'${s.replaceAll("'", `'\\''`)}'`;

/** variants() names the variants in order. */
export function setUpTester(key, root, variants) {
  const form = byId('assign'), out = byId('assign-result');
  form.addEventListener('submit', async (e) => {
    e.preventDefault();
    const f = new FormData(form), unit = f.get('unit');
    const query = new URLSearchParams({ type: f.get('type') });
    if (f.get('tenant')) query.set('tenant', f.get('tenant'));
    if (unit === '.' || unit === '..') { fillIn(out, h('p', { class: 'notice bad' }, 'An address cannot carry a unit that is only dots.')); return; }
    const path = `/experiments/${key}/assignments/${encodeURIComponent(unit)}?${query}`;
    try {
      const { body } = await get(path);
      fillIn(out, answer(body, `curl ${quote(`${location.origin}${root}/admin/v1${path}`)}`, variants().indexOf(body.variant)));
    } catch (err) {
      fillIn(out, errorState({ ...err, title: undefined, message: err.message, requestId: err.requestId }));
    }
  });
}
