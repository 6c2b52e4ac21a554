// SPDX-License-Identifier: Apache-2.0
// The audit log: filters in the address, more on demand, the chain checked on demand.
import { get } from '../api.js';
import { auditItem } from '../audit.js';
import { byId, chip, emptyState, errorState, fillIn, h } from '../dom.js';
import { plural } from '../format.js';
import { freshness, pageUrl, start } from '../shell.js';

const el = byId('list'), more = byId('more'), form = byId('filters');
const names = ['object', 'action', 'actor'];
let serial = 0;

function linkOf(object = '') {
  const [kind, name] = [object.slice(0, object.indexOf('/')), object.slice(object.indexOf('/') + 1)];
  return { experiment: pageUrl(`experiments/${name}`), upstream: pageUrl('upstreams'), key: pageUrl('keys') }[kind];
}

async function load(cursor = '') {
  const mine = ++serial;
  const q = new URLSearchParams({ limit: '50' });
  for (const n of names) if (form.elements[n].value.trim()) q.set(n, form.elements[n].value.trim());
  if (cursor) q.set('cursor', cursor);
  fillIn(more);
  if (!cursor) el.setAttribute('aria-busy', 'true');
  try {
    const { body } = await get(`/audit?${q}`);
    if (mine !== serial) return;
    freshness('loaded');
    const items = body.items.map((r) => auditItem(r, { withObject: true, link: linkOf(r.object) }));
    if (cursor) el.querySelector('ul').append(...items);
    else fillIn(el, items.length ? h('ul', { class: 'auditlist panel' }, items) : emptyState('Nothing is recorded', q.size > 1 ? 'No change matches the filter.' : 'Every change through the API, the UI and the command line is listed here.'));
    if (body.next_cursor) fillIn(more, h('button', { type: 'button', onclick: () => load(body.next_cursor) }, 'Load older'));
  } catch (err) {
    if (mine !== serial) return;
    freshness('failed');
    fillIn(cursor ? more : el, errorState(err, () => load(cursor)));
  } finally {
    el.removeAttribute('aria-busy');
  }
}

async function verify() {
  const out = byId('verify-result');
  fillIn(out, h('p', { class: 'hint' }, 'Checking every row…'));
  try {
    const { body } = await get('/audit:verify');
    fillIn(out, h('p', { class: `notice ${body.whole ? 'good' : 'bad'}` }, body.whole ? chip('good', 'check', 'Whole') : chip('bad', 'cross', 'Broken'), ` ${plural(body.rows, 'row')} checked. `, body.fault ?? 'Every hash follows from the row before.'));
  } catch (err) {
    fillIn(out, errorState(err, verify));
  }
}

start();
const asked = new URLSearchParams(location.search);
for (const n of names) form.elements[n].value = asked.get(n) ?? '';
form.addEventListener('submit', (e) => {
  e.preventDefault();
  const q = new URLSearchParams();
  for (const n of names) if (form.elements[n].value.trim()) q.set(n, form.elements[n].value.trim());
  history.replaceState(null, '', `${location.pathname}${q.size ? `?${q}` : ''}`);
  load();
});
byId('verify').addEventListener('click', verify);
load();
