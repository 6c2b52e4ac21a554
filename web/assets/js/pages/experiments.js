// SPDX-License-Identifier: Apache-2.0
// The list of experiments, with live figures for each variant.
import { get, list } from '../api.js';
import { verbOf } from '../audit.js';
import { byId, emptyState, errorState, fillIn, h, refresh } from '../dom.js';
import { ago, percentShort, rate, ratio, seconds, when } from '../format.js';
import { poll } from '../poll.js';
import { failing, freshness, pageUrl, root, start } from '../shell.js';
import { nameOf, servedShare, stateChip, trafficBar } from '../variants.js';

const EXAMPLE = `curl -X POST ${location.origin}${root}/admin/v1/experiments -H 'content-type: application/json' -d '{
  "key": "chat-v2", "model": "chat", "kind": "canary", "state": "running", "baseline": "control",
  "variants": [
    {"name": "control", "weight": 9000, "upstream": "v1", "model": "Qwen3-8B"},
    {"name": "canary",  "weight": 1000, "upstream": "v2", "model": "Qwen3-8B-awq"}
  ]}'`;

const el = byId('list'), state = byId('filter-state'), text = byId('filter-text');
const data = { experiments: null, arms: [], changes: new Map() };

function figures(exp) {
  const head = h('tr', null, h('th', { scope: 'col' }, 'Variant'), ['Share', 'Req/s', 'Success', 'TTFT p95'].map((t) => h('th', { scope: 'col', class: 'num' }, t)));
  return h('table', { class: 'mini' }, h('caption', { class: 'visually-hidden' }, `Live figures of ${exp.key}`), h('thead', null, head), h('tbody', null, exp.variants.map((v, i) => {
    const a = data.arms.find((one) => one.experiment === exp.key && one.variant === v.name) ?? {};
    const bad = typeof a.success_ratio === 'number' && a.success_ratio < 0.95;
    return h('tr', null, h('th', { scope: 'row' }, nameOf(exp, i)), h('td', { class: 'num' }, percentShort(servedShare(exp, i))), h('td', { class: 'num' }, rate(a.rps_1m)),
      h('td', { class: `num${bad ? ' worse' : ''}` }, ratio(a.success_ratio)), h('td', { class: 'num' }, seconds(a.ttft_p95_seconds)));
  })));
}

function card(exp) {
  const change = data.changes.get(exp.key);
  return h('li', { class: 'card' },
    h('div', { class: 'card-name' }, h('h2', null, h('a', { href: pageUrl(`experiments/${exp.key}`) }, exp.key)), h('p', null, stateChip(exp.state)),
      h('p', { class: 'hint' }, exp.kind === 'ab' ? 'A/B test' : 'Canary', ' on ', h('code', null, exp.model)),
      h('p', { class: 'hint', title: when(exp.updated_at) }, change ? `${verbOf(change)} by ${change.actor}, ` : 'Changed ', ago(exp.updated_at))),
    h('div', { class: 'card-traffic' }, trafficBar(exp)), h('div', { class: 'card-figures scroll', role: 'region', tabindex: '0', 'aria-label': `Live figures of ${exp.key}` }, figures(exp)));
}

const rank = ['running', 'paused', 'rolled_back', 'promoted', 'draft', 'completed', 'archived'];
const byNeed = (a, b) => rank.indexOf(a.state) - rank.indexOf(b.state) || b.updated_at.localeCompare(a.updated_at);

function shown() {
  const q = text.value.trim().toLowerCase();
  return data.experiments.filter((e) => (state.value ? e.state === state.value : e.state !== 'archived') && (!q || e.key.includes(q) || e.model.toLowerCase().includes(q)));
}

function draw() {
  if (!data.experiments) return;
  el.removeAttribute('aria-busy');
  const rows = shown();
  if (!data.experiments.length) fillIn(el, emptyState('No experiments yet', 'An experiment splits one model’s users between variants. Make one with the API, the file’s resources: section or sluice apply.', EXAMPLE));
  else if (!rows.length) fillIn(el, emptyState('Nothing matches', 'No experiment has that state and text.', null, h('button', { type: 'button', onclick: () => { state.value = ''; text.value = ''; filter(); } }, 'Clear the filter')));
  else if (el.querySelector(':scope > .cards')) refresh(el, h('ul', { class: 'cards' }, rows.map(card)));
  else fillIn(el, h('ul', { class: 'cards' }, rows.map(card)));
}

function filter() {
  const q = new URLSearchParams();
  if (state.value) q.set('state', state.value);
  if (text.value.trim()) q.set('q', text.value.trim());
  history.replaceState(null, '', `${location.pathname}${q.size ? `?${q}` : ''}`);
  draw();
}

start();
const asked = new URLSearchParams(location.search);
state.value = asked.get('state') ?? '';
if (state.selectedIndex < 0) state.value = '';
text.value = asked.get('q') ?? '';
state.addEventListener('change', filter);
text.addEventListener('input', filter);
byId('filters').addEventListener('submit', (e) => e.preventDefault());

const figuresPoll = poll(async () => {
  const [experiments, live] = await Promise.all([list('/experiments'), get('/live')]);
  Object.assign(data, { experiments: experiments.sort(byNeed), arms: live.body.items });
  failing(null);
  draw();
}, { tell: freshness, failed: (err) => { failing(err); if (!data.experiments) fillIn(el, errorState(err, () => figuresPoll.now())); } });

poll(async () => {
  const changes = new Map();
  for (const row of (await get('/audit?limit=100')).body.items) {
    const key = row.object?.startsWith('experiment/') ? row.object.slice('experiment/'.length) : null;
    if (key && !changes.has(key)) changes.set(key, row);
  }
  data.changes = changes;
  draw();
}, { every: 10_000 });
