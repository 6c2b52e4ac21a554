// SPDX-License-Identifier: Apache-2.0
// Upstreams and the state of their endpoints.
import { get, list, plain } from '../api.js';
import { byId, chip, emptyState, errorState, fillIn, h, refresh, tableRegion } from '../dom.js';
import { NONE, ago, count, when } from '../format.js';
import { poll } from '../poll.js';
import { failing, freshness, pageUrl, root, start } from '../shell.js';

const el = byId('list');
const EXAMPLE = `curl -X POST ${location.origin}${root}/admin/v1/upstreams -H 'content-type: application/json' \\
  -d '{"name": "v1", "dialect": "vllm", "endpoints": ["http://gpu1:8000/v1"]}'`;

const states = {
  ready: ['good', 'check', 'Ready'], starting: ['', 'draft', 'Starting'], loading: ['warn', 'draft', 'Loading'], asleep: ['', 'paused', 'Asleep'],
  unreachable: ['bad', 'cross', 'Unreachable'], failing: ['bad', 'warn', 'Failing'],
};

const priceNames = { input: 'input', cached_input: 'cached', cache_write: 'cache write', output: 'output', reasoning: 'reasoning', request: 'per request' };

function price(p) {
  const set = Object.entries(priceNames).filter(([k]) => p?.[k] !== undefined);
  return set.length ? `USD per 1M tokens: ${set.map(([k, name]) => `${name} ${p[k]}`).join(', ')}` : 'No price: its cost is unknown';
}

function usedBy(name, experiments, models) {
  const links = experiments.filter((e) => e.state !== 'archived' && e.variants.some((v) => v.upstream === name))
    .map((e) => [h('a', { href: pageUrl(`experiments/${e.key}`) }, e.key), ` (${e.variants.filter((v) => v.upstream === name).map((v) => v.name).join(', ')})`]);
  const defaults = models.filter((m) => m.default.upstream === name).map((m) => ['default of ', h('code', null, m.name)]);
  const all = [...links, ...defaults];
  return all.length ? ['Used by ', all.map((x, i) => [i > 0 && ', ', x])] : 'Used by nothing';
}

function endpoints(u, status) {
  const rows = status.map((raw) => {
    const e = plain(raw);
    const [kind, iconName, word] = states[e.state] ?? ['', 'draft', e.state];
    const failed = e.last_error ? [e.last_error, ' ', h('small', { class: 'hint', title: when(e.last_error_at) }, ago(e.last_error_at))] : NONE;
    return h('tr', null, h('th', { scope: 'row', class: 'mono' }, e.url), h('td', null, chip(kind, iconName, word), e.reason && h('small', { class: 'sub' }, e.reason)),
      h('td', { class: 'num' }, count(e.in_flight)), h('td', { title: when(e.since) }, ago(e.since)), h('td', null, failed));
  });
  return tableRegion(`Endpoints of ${u.name}`, ['Endpoint', 'State', { text: 'In flight', num: true }, 'Since', 'Last error'], rows, 'endpoints');
}

function panel({ u, status, error }, experiments, models) {
  const ready = status.filter((s) => plain(s).ready).length;
  const all = status.length > 0 && ready === status.length;
  return h('section', { class: 'panel', 'aria-labelledby': `u-${u.name}` },
    h('div', { class: 'panel-head' }, h('h2', { id: `u-${u.name}` }, u.name), chip(all ? 'good' : ready ? 'warn' : 'bad', all ? 'check' : 'warn', `${ready} of ${status.length} ready`),
      h('span', { class: 'hint' }, u.dialect || 'openai'), h('span', { class: 'spring' }), h('span', { class: 'hint' }, usedBy(u.name, experiments, models))),
    error ? errorState(error) : endpoints(u, status),
    h('p', { class: 'hint pad' }, price(u.price), u.credential && [' · credential ', h('code', null, u.credential)]));
}

start();
let shown = false;
const live = poll(async () => {
  const [ups, experiments, models] = await Promise.all([list('/upstreams'), list('/experiments'), list('/models')]);
  const all = await Promise.all(ups.map(async (u) => {
    try { return { u, status: (await get(`/upstreams/${encodeURIComponent(u.name)}/status`)).body.endpoints ?? [] }; } catch (error) { return { u, status: [], error }; }
  }));
  shown = true;
  failing(null);
  el.removeAttribute('aria-busy');
  if (!all.length) fillIn(el, emptyState('No upstreams yet', 'An upstream is a set of servers that serve one model version.', EXAMPLE));
  else refresh(el, all.map((one) => panel(one, experiments, models)));
}, { tell: freshness, failed: (err) => { failing(err); if (!shown) fillIn(el, errorState(err, () => live.now())); } });
