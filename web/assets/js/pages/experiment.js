// SPDX-License-Identifier: Apache-2.0
// The experiment page: state and actions, weights, figures, charts, tester, history.
import { get } from '../api.js';
import { allowed, kill, pause, resume, rollback, startExperiment } from '../actions.js';
import { auditItem, verbOf } from '../audit.js';
import { Chart } from '../chart.js';
import { toast } from '../dialog.js';
import { actionButton, byId, emptyState, errorState, fillIn, h, setText } from '../dom.js';
import { ago, rate, ratio, seconds, usd, when } from '../format.js';
import { poll } from '../poll.js';
import { sentence } from '../ramp.js';
import { Rollout } from '../rollout.js';
import { Series } from '../series.js';
import { failing, freshness, pageUrl, root, start, subject as key } from '../shell.js';
import { shortcut } from '../shortcuts.js';
import { liveTable, storedTable, variantTable } from '../tables.js';
import { setUpTester } from '../tester.js';
import { stateChip, trafficBar } from '../variants.js';
import { WeightsEditor } from '../weights.js';

const page = { exp: null, etag: '', arms: [], events: [], rolledBackHere: false, minutes: 5, rows: [] };
const series = new Series(key);
const editor = new WeightsEditor(byId('weights'), key, { saved: () => { live.now(); past.now(); } });
const rollout = new Rollout(key, { act: (run, ...args) => act(run, ...args), rows: () => page.rows });
const context = () => ({ exp: page.exp, etag: page.etag, live: () => page.arms, report: () => rollout.report });

async function act(run, ...args) {
  if (!page.exp) return;
  const out = await run(context(), ...args);
  if (!out) return;
  if (run === rollback) page.rolledBackHere = true;
  if (run === startExperiment) page.rolledBackHere = false;
  await Promise.all([live.now(), past.now()]);
}

function header(exp) {
  fillIn(byId('exp-meta'), stateChip(exp.state), h('span', null, exp.kind === 'ab' ? 'A/B test' : 'Canary'), h('span', null, 'on model ', h('code', null, exp.model)),
    h('span', null, `sticky by ${exp.stickiness}`), h('span', null, `generation ${exp.generation}`), h('span', { class: 'mono', title: 'revision of the last change' }, `rev ${exp.revision}`),
    h('span', { id: 'changed', title: when(exp.updated_at) }, `changed ${ago(exp.updated_at)}`), trafficBar(exp));
  const may = allowed(exp), hold = exp.state === 'paused' ? ['Resume', resume, may.resume] : ['Pause', pause, may.pause];
  const button = (text, run, why, cls) => actionButton(text, { run: () => act(run), why, cls, tell: toast });
  fillIn(byId('exp-actions'), may.start === null && button(exp.state === 'draft' ? 'Start…' : 'Start again…', startExperiment, null, 'primary'),
    button(`${hold[0]}…`, hold[1], hold[2]), button(`Roll back to ${exp.baseline}…`, rollback, may.rollback, 'danger'));
}

/** What the last rollback said of itself, in words and numbers. */
function because() {
  const row = page.rows.find((r) => /rollback$/.test(r.action)), text = row?.details?.decision?.text ?? (row?.action.startsWith('ramp.') ? row.reason : '');
  return text ? h('span', { class: 'because' }, `${sentence(text.replace(/^rolled back: /, ''))}. `) : '';
}

function notice(exp) {
  const el = byId('exp-notice');
  if (exp.state !== 'rolled_back') { el.replaceChildren(); return; }
  fillIn(el, h('div', { class: 'notice warn', role: 'status' }, h('p', null, h('strong', null, `Rolled back: ${exp.baseline} serves everybody. `), page.rolledBackHere ? 'Your rollback is in force. ' : `Since ${when(exp.updated_at)}. `, because(),
    'The weights are kept for a later start. ', h('button', { type: 'button', class: 'link', onclick: () => act(startExperiment) }, 'Start again as a new generation…'))));
}

function showExperiment(exp) {
  const focus = document.activeElement?.closest('#exp-actions, #exp-notice, #variants') ? document.activeElement.textContent : null;
  header(exp);
  notice(exp);
  variantTable(byId('variants'), exp, { onKill: (i) => act(kill, i), whyNotKill: allowed(exp).kill, tell: toast });
  if (focus) [...document.querySelectorAll('#exp-actions button, #exp-notice button, #variants button')].find((b) => b.textContent === focus)?.focus();
  byId('exp-body').removeAttribute('aria-busy');
  if (!page.charts) setUpCharts(exp);
}

const kinds = [
  { title: 'Requests/s', field: 'rps', format: rate },
  { title: 'Success ratio', field: 'success', format: ratio, max: 1, floor: (v) => (v >= 0.95 ? 0.95 : v >= 0.8 ? 0.8 : v >= 0.5 ? 0.5 : 0) },
  { title: 'TTFT p95', field: 'ttft', format: seconds },
  { title: 'Duration p95', field: 'duration', format: seconds },
  { title: 'Output tokens/s', field: 'tokens', format: rate },
  { title: 'Cost per hour', field: 'cost', format: usd },
];

function setUpCharts(exp) {
  const names = exp.variants.map((v) => v.name);
  page.charts = kinds.map((k) => new Chart({ ...k, names }));
  fillIn(byId('charts'), page.charts.map((c) => c.el));
  const tables = (on = !page.charts.every((c) => c.asTable)) => page.charts.forEach((c) => c.showTable(on));
  const span = h('select', { id: 'chart-span', onchange: (e) => { page.minutes = Number(e.target.value); draw(); } }, [2, 5, 15].map((m) => h('option', { value: String(m), selected: m === page.minutes }, `${m} min`)));
  fillIn(byId('chart-controls'), h('span', { class: 'hint' }, 'Collected while this tab is open'), h('label', null, 'Last ', span), h('button', { type: 'button', class: 'quiet', onclick: () => tables() }, 'All as tables'));
  shortcut('t', 'Charts as tables, and back', () => tables());
}

function draw() {
  const now = Date.now(), from = series.begin(now - page.minutes * 60_000, now);
  page.charts?.forEach((c) => c.update(series, from, now, page.events));
}

async function tick() {
  const [one, figures] = await Promise.all([get(`/experiments/${key}`, { ifNoneMatch: page.etag }), get('/live')]);
  page.arms = figures.body.items.filter((a) => a.experiment === key);
  if (!one.notModified) {
    const names = (e) => e?.variants.map((v) => v.name).join();
    if (page.exp && names(page.exp) !== names(one.body)) page.charts = null;
    page.exp = one.body;
    page.etag = one.etag;
    showExperiment(page.exp);
  }
  setText(byId('changed'), `changed ${ago(page.exp.updated_at)}`);
  await rollout.update(page.exp);
  editor.update(page.exp, page.etag);
  series.add(page.arms);
  const el = byId('live');
  if (page.arms.length && !el.querySelector('.figures')) el.replaceChildren();
  if (page.arms.length) liveTable(el, page.exp, page.arms);
  else fillIn(el, emptyState('No traffic yet', `Requests for the model ${page.exp.model} appear here within seconds.`, `curl http://127.0.0.1:8080/v1/chat/completions \\\n  -H 'content-type: application/json' -H 'x-user-id: alice' \\\n  -d '{"model":"${page.exp.model}","messages":[{"role":"user","content":"hi"}]}'`));
  draw();
  failing(null);
}

function failed(err) {
  failing(err);
  if (page.exp && err.status !== 404) return; // what is shown stays, marked stale
  fillIn(byId('exp-meta'));
  fillIn(byId('exp-actions'));
  byId('exp-body').hidden = true;
  fillIn(byId('exp-notice'), err.status === 404 ? emptyState('This experiment does not exist', 'It may have been deleted, or the address is wrong.', null, h('p', null, h('a', { href: pageUrl('experiments') }, 'All experiments'))) : errorState(err, () => location.reload()));
}

function showHistory(rows) {
  page.rows = rows;
  page.events = rows.filter((r) => !/\.(create|patch)$/.test(r.action)).map((r) => ({ t: Date.parse(r.time), text: verbOf(r) }));
  fillIn(byId('history'), rows.length ? h('ul', { class: 'auditlist' }, rows.map((r) => auditItem(r)))
    : h('p', { class: 'hint pad' }, 'Nothing was changed since the experiment was made.'));
}

const once = (el, ask) => ({ every: 10_000, failed: (err) => { if (el.querySelector('.skeleton')) fillIn(el, errorState(err, ask)); } });

start();
setUpTester(key, root, () => page.exp?.variants.map((v) => v.name) ?? []);
const live = poll(tick, { tell: freshness, failed });
const stored = poll(async () => {
  const { body } = await get(`/experiments/${key}/results`);
  if (!page.exp) await live.now();
  if (page.exp) storedTable(byId('stored'), page.exp, body);
}, once(byId('stored'), () => stored.now()));
const past = poll(async () => {
  const rows = (await get(`/experiments/${key}/history?limit=12`)).body.items;
  const text = JSON.stringify(rows.map((r) => r.id));
  if (byId('history').dataset.ids !== text || !byId('history').querySelector('details[open]')) showHistory(rows);
  if (byId('history').dataset.ids !== text && page.exp) notice(page.exp);
  byId('history').dataset.ids = text;
}, once(byId('history'), () => past.now()));
byId('run-preflight').addEventListener('click', (e) => rollout.preflight(e.currentTarget));
shortcut('r', 'Roll back (asks first)', () => { if (page.exp && allowed(page.exp).rollback === null) act(rollback); });
