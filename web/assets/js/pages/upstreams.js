// SPDX-License-Identifier: Apache-2.0
// Upstreams and the state of their endpoints.
import { api, get, list, plain } from '../api.js';
import { confirmAction, reasonField, toast } from '../dialog.js';
import { byId, chip, emptyState, errorState, fillIn, h, refresh, tableRegion } from '../dom.js';
import { NONE, ago, count, plural, seconds, when } from '../format.js';
import { poll } from '../poll.js';
import { failing, freshness, pageUrl, root, start } from '../shell.js';

const el = byId('list');
const EXAMPLE = `curl -X POST ${location.origin}${root}/admin/v1/upstreams -H 'content-type: application/json' \\
  -d '{"name": "v1", "dialect": "vllm", "endpoints": ["http://gpu1:8000/v1"]}'`;

const states = {
  ready: ['good', 'check', 'Ready'], starting: ['', 'draft', 'Starting'], loading: ['warn', 'draft', 'Loading'], asleep: ['', 'paused', 'Asleep'],
  unreachable: ['bad', 'cross', 'Unreachable'], failing: ['bad', 'warn', 'Failing'], warming: ['warn', 'draft', 'Warming up'], drained: ['warn', 'paused', 'Drained'],
};

/** What keeps calls away from an endpoint whose checks pass, if anything. */
function kept(e) {
  const left = (t) => Math.max(0, Math.ceil((Date.parse(t) - Date.now()) / 1000));
  if (e.breaker.state === 'open') return ['bad', 'cross', 'Breaker open', e.breaker.until ? `calls failed; probes in ${left(e.breaker.until)} s` : 'calls failed'];
  if (e.breaker.state === 'half_open') return ['warn', 'warn', 'Breaker half open', 'a few calls try whether it works again'];
  if (e.cool_until && left(e.cool_until) > 0) return ['warn', 'paused', 'Rate limited', `it asked for a pause; ${left(e.cool_until)} s left`];
  return null;
}

function act(name, verb, endpoint, inFlight) {
  const what = endpoint ?? `all endpoints of ${name}`;
  const texts = {
    drain: ['Drain', [h('p', null, h('code', null, what), ` gets no new calls, on every replica, until it is enabled again. ${plural(inFlight, 'call')} in flight on this replica finish.`),
      h('p', null, endpoint ? 'The other endpoints take its share.' : 'Requests go to a declared fallback, or get 503.')]],
    enable: ['Enable', [h('p', null, h('code', null, what), ' gets calls again as soon as its check passes.')]],
  };
  const [action, content] = texts[verb];
  return confirmAction({
    title: `${action} ${endpoint ? 'an endpoint' : name}?`, action, danger: verb === 'drain',
    content: [...content, reasonField()],
    run: async (form) => {
      const body = {};
      if (endpoint) body.endpoint = endpoint;
      const reason = (form.get('reason') ?? '').trim();
      if (reason) body.reason = reason;
      const out = (await api('POST', `/upstreams/${encodeURIComponent(name)}:${verb}?wait=applied`, { body })).body;
      toast(verb === 'drain' ? `Drained ${what}.` : `Enabled ${what}.`);
      await live.now();
      return out;
    },
  });
}

async function probe(name) {
  try {
    await api('POST', `/upstreams/${encodeURIComponent(name)}:probe`, { body: {} });
    toast(`Checked ${name}.`);
  } catch (err) { toast(err.message); }
  await live.now();
}

/** A button; its click is heard by the list, since a refresh keeps the elements. */
const button = (text, label, verb, name, endpoint, inFlight) => h('button', { type: 'button', class: verb === 'drain' ? 'small danger-quiet' : 'small',
  'aria-label': label, 'data-verb': verb, 'data-upstream': name, 'data-endpoint': endpoint, 'data-calls': inFlight }, text);

el.addEventListener('click', (event) => {
  const d = event.target.closest('button[data-verb]')?.dataset;
  if (!d) return;
  if (d.verb === 'probe') probe(d.upstream);
  else act(d.upstream, d.verb, d.endpoint, Number(d.calls ?? 0));
});

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
    const away = e.ready ? kept(e) : null;
    const [kind, iconName, word] = away ?? states[e.state] ?? ['', 'draft', e.state];
    const why = away?.[3] ?? e.reason;
    const failed = e.last_error ? [e.last_error, ' ', h('small', { class: 'hint', title: when(e.last_error_at) }, ago(e.last_error_at))] : NONE;
    const engine = e.engine ? `${e.engine.running} / ${e.engine.waiting}${e.engine.kv_use === undefined ? '' : `, KV ${Math.round(100 * e.engine.kv_use)} %`}` : NONE;
    return h('tr', null, h('th', { scope: 'row', class: 'mono' }, e.url),
      h('td', null, chip(kind, iconName, word), why && h('small', { class: 'sub' }, why), e.weight < 1 && e.ready && h('small', { class: 'sub' }, `starts slowly: ${Math.round(100 * e.weight)} % of its share`)),
      h('td', { title: when(e.since) }, ago(e.since)), h('td', { class: 'num' }, count(e.in_flight)),
      h('td', { class: 'num' }, e.ttft ? `${seconds(e.ttft.p50_ms / 1000)} / ${seconds(e.ttft.p95_ms / 1000)}` : NONE), h('td', { class: 'num' }, e.output_tokens_per_second > 0 ? count(Math.round(e.output_tokens_per_second)) : NONE),
      h('td', { class: 'num' }, engine), h('td', null, failed),
      h('td', { class: 'end' }, e.drained ? button('Enable…', `Enable… ${e.url}`, 'enable', u.name, e.url) : button('Drain…', `Drain… ${e.url}`, 'drain', u.name, e.url, e.in_flight)));
  });
  const num = (text) => ({ text, num: true });
  return tableRegion(`Endpoints of ${u.name}`, ['Endpoint', 'State', 'Since', num('In flight'), num('TTFT p50 / p95'), num('Tokens/s'), num('Engine runs / waits'), 'Last error', 'Action'], rows, 'endpoints');
}

function queue(q) {
  const of = (n, max) => (max ? `${count(n)} of ${count(max)}` : count(n));
  return `${of(q?.in_flight ?? 0, q?.max_in_flight)} in flight` + (q?.max_in_flight || q?.queued ? `, ${of(q.queued, q.max_queue)} waiting` : '');
}

function panel({ u, status, queue: q, error }, experiments, models) {
  const ready = status.filter((s) => plain(s).ready).length;
  const all = status.length > 0 && ready === status.length;
  return h('section', { class: 'panel', 'aria-labelledby': `u-${u.name}` },
    h('div', { class: 'panel-head' }, h('h2', { id: `u-${u.name}` }, u.name), chip(all ? 'good' : ready ? 'warn' : 'bad', all ? 'check' : 'warn', `${ready} of ${status.length} ready`),
      h('span', { class: 'hint' }, u.dialect || 'openai', ' · ', queue(q)), h('span', { class: 'spring' }), h('span', { class: 'hint' }, usedBy(u.name, experiments, models)),
      button('Probe now', `Probe now: ${u.name}`, 'probe', u.name),
      u.drained?.includes('*') ? button('Enable all…', `Enable all… of ${u.name}`, 'enable', u.name) : button('Drain all…', `Drain all… of ${u.name}`, 'drain', u.name, undefined, q?.in_flight ?? 0)),
    error ? errorState(error) : endpoints(u, status),
    h('p', { class: 'hint pad' }, price(u.price), u.credential && [' · credential ', h('code', null, u.credential)]));
}

start();
let shown = false;
const live = poll(async () => {
  const [ups, experiments, models] = await Promise.all([list('/upstreams'), list('/experiments'), list('/models')]);
  const all = await Promise.all(ups.map(async (u) => {
    try {
      const { endpoints: status = [], queue: q } = (await get(`/upstreams/${encodeURIComponent(u.name)}/status`)).body;
      return { u, status, queue: q };
    } catch (error) { return { u, status: [], error }; }
  }));
  shown = true;
  failing(null);
  el.removeAttribute('aria-busy');
  if (!all.length) fillIn(el, emptyState('No upstreams yet', 'An upstream is a set of servers that serve one model version.', EXAMPLE));
  else refresh(el, all.map((one) => panel(one, experiments, models)));
}, { tell: freshness, failed: (err) => { failing(err); if (!shown) fillIn(el, errorState(err, () => live.now())); } });
