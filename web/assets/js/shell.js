// SPDX-License-Identifier: Apache-2.0
// What every page has: the status of the gateway, the theme, help, navigation by key.
import { get, token } from './api.js';
import { byId, fillIn, h, icon, setText } from './dom.js';
import { ago, when } from './format.js';
import { poll } from './poll.js';
import { shortcut, showHelp } from './shortcuts.js';

export const root = document.documentElement.dataset.base;
export const subject = document.documentElement.dataset.subject;
export const pageUrl = (path) => `${root}/ui/${path}`;

const words = { loading: 'Connecting', live: 'Live', stale: 'Stale', paused: 'Paused while hidden', loaded: 'Loaded', failed: 'Not loaded' };

/** Shows how fresh the page's data is; polls pass it as tell(). */
export function freshness(state, age = 0) {
  const el = byId('freshness');
  el.dataset.state = state;
  document.body.dataset.freshness = state;
  setText(el.querySelector('.fresh-text'), state === 'stale' ? `Stale: last answer ${Math.round(age / 1000)} s ago` : words[state]);
}

/** The last failure of a poll, beside data that is already shown. */
export function failing(err) {
  const el = byId('freshness');
  el.title = err ? err.message : '';
}

function theme() {
  const button = byId('theme'), html = document.documentElement;
  const order = ['system', 'light', 'dark'];
  const show = () => {
    setText(byId('theme-name'), html.dataset.theme ?? 'system');
    button.setAttribute('aria-label', `Theme: ${html.dataset.theme ?? 'system'}`);
  };
  button.addEventListener('click', () => {
    const next = order[(order.indexOf(html.dataset.theme ?? 'system') + 1) % order.length];
    if (next === 'system') delete html.dataset.theme; else html.dataset.theme = next;
    try { localStorage.setItem('sluice-theme', next); } catch { /* holds for this page */ }
    show();
  });
  show();
}

function banner(s) {
  const lines = s.degraded.map((d) => [d.message, d.since && ` (since ${when(d.since)})`]);
  if (s.compile_error) lines.push([`Revision ${s.compile_error.revision} did not compile, the one before goes on serving: ${s.compile_error.message}`]);
  const late = s.replicas.filter((r) => r.behind);
  if (late.length) lines.push([`${late.map((r) => r.id).join(', ')} ${late.length === 1 ? 'is' : 'are'} behind revision ${s.revision}.`]);
  const el = byId('banner');
  const text = JSON.stringify(lines);
  if (el.dataset.text === text) return; // nothing new to announce
  el.dataset.text = text;
  el.hidden = lines.length === 0;
  fillIn(el, lines.map((l) => h('p', null, icon('warn'), ' ', l)));
}

const short = (revision) => { const s = String(revision); return s.length > 8 ? `…${s.slice(-6)}` : s; };

async function status() {
  const s = (await get('/status')).body;
  const badge = byId('badge');
  badge.hidden = !s.badge;
  setText(badge, s.badge ?? '');
  byId('forget-token').hidden = !token.get();
  const rev = byId('foot-revision');
  rev.title = `revision ${s.revision}, from ${s.source}`;
  setText(rev, `Revision ${short(s.revision)}`);
  const late = s.replicas.filter((r) => r.behind).length;
  setText(byId('foot-replicas'), `${s.replicas.length} ${s.replicas.length === 1 ? 'replica' : 'replicas'}${late ? `, ${late} behind` : s.replicas.length > 1 ? ', all in step' : ''}`);
  setText(byId('foot-source'), s.read_only ? 'Read-only: the database is away' : `Up since ${ago(s.started_at).replace(' ago', '')}`.replace('since just now', 'for seconds').replace('since', 'for'));
  setText(byId('foot-auth'), s.auth === 'keys' ? 'Data plane asks for keys' : 'Data plane open: no keys asked');
  banner(s);
}

const go = (path) => () => { location.href = pageUrl(path); };

/** Starts what is common; a page calls it once. */
export function start() {
  theme();
  byId('help').addEventListener('click', showHelp);
  byId('forget-token').addEventListener('click', () => { token.set(''); location.reload(); });
  shortcut('?', 'This help', showHelp);
  shortcut('/', 'Find', () => document.querySelector('[data-search]')?.focus());
  shortcut('g e', 'Experiments', go('experiments'));
  shortcut('g u', 'Upstreams', go('upstreams'));
  shortcut('g k', 'Keys', go('keys'));
  shortcut('g a', 'Audit', go('audit'));
  poll(status, { every: 5000, failed: (err) => {
    if (err.status === 0) { const el = byId('banner'); el.hidden = false; el.dataset.text = 'down'; fillIn(el, h('p', null, icon('warn'), ' ', err.title, ' ', err.message)); }
  } });
}
