// SPDX-License-Identifier: Apache-2.0
// API keys of the data plane: list, create (the secret is shown once), revoke.
import { api, get, list } from '../api.js';
import { confirmAction, copy, inform, reasonField, toast } from '../dialog.js';
import { byId, chip, emptyState, errorState, fillIn, h, icon, tableRegion } from '../dom.js';
import { NONE, ago, when } from '../format.js';
import { poll } from '../poll.js';
import { failing, freshness, root, start } from '../shell.js';

const el = byId('list');
const states = { active: ['good', 'check', 'Active'], expired: ['', 'paused', 'Expired'], revoked: ['bad', 'cross', 'Revoked'] };
const DAY = 86_400_000;

function row(k) {
  const limits = [k.models?.length && `models ${k.models.join(', ')}`, k.scopes?.length && `scopes ${k.scopes.join(', ')}`, k.user && `user ${k.user}`].filter(Boolean);
  return h('tr', null, h('th', { scope: 'row' }, k.name, h('small', { class: 'sub mono' }, k.prefix)), h('td', null, chip(...states[k.state] ?? ['', 'draft', k.state])), h('td', null, k.tenant || NONE),
    h('td', null, limits.length ? limits.join('; ') : 'all models, no scopes'), h('td', { title: when(k.created_at) }, ago(k.created_at)),
    h('td', { title: k.expires_at ? when(k.expires_at) : undefined }, k.revoked_at ? `revoked ${ago(k.revoked_at)}` : k.expires_at ? when(k.expires_at) : 'never'),
    h('td', { class: 'end' }, k.state !== 'revoked' && h('button', { type: 'button', class: 'small danger-quiet', 'aria-label': `Revoke ${k.name}`, onclick: () => revoke(k) }, 'Revoke…')));
}

function revoke(k) {
  return confirmAction({
    title: `Revoke ${k.name}?`, action: 'Revoke', danger: true,
    content: [h('p', null, 'Requests with ', h('code', null, k.prefix), ' get 401 at once, on every replica. A revoked key cannot be brought back. Streams in flight finish.'), reasonField()],
    run: async (form) => {
      const reason = (form.get('reason') ?? '').trim();
      await api('POST', `/keys/${encodeURIComponent(k.id)}:revoke?wait=applied`, { body: reason ? { reason } : {} });
      toast(`Revoked ${k.name}.`);
      await live.now();
    },
  });
}

const field = (label, attrs, hint) => h('label', { class: 'block' }, label, h('input', { autocomplete: 'off', spellcheck: 'false', ...attrs }), hint && h('span', { class: 'hint' }, hint));

async function create() {
  const models = (await list('/models').catch(() => [])).map((m) => m.name);
  const out = await confirmAction({
    title: 'Create a key', action: 'Create key', focus: '[name=name]',
    content: [field('Name', { name: 'name', required: true, maxlength: '100' }, 'Who or what uses it'),
      field('Tenant', { name: 'tenant', maxlength: '64', pattern: '[A-Za-z0-9_.\\-]*' }, 'Optional; groups keys in usage and targeting'),
      models.length > 0 && h('fieldset', null, h('legend', null, 'Models (none chosen: all)'), models.map((m) => h('label', { class: 'check' }, h('input', { type: 'checkbox', name: 'models', value: m }), ' ', h('code', null, m)))),
      h('fieldset', null, h('legend', null, 'Scopes'), h('label', { class: 'check' }, h('input', { type: 'checkbox', name: 'scopes', value: 'override' }), ' override: may choose the variant by header'),
        h('label', { class: 'check' }, h('input', { type: 'checkbox', name: 'scopes', value: 'identity' }), ' identity: may name end users')),
      h('label', { class: 'block' }, 'Expires', h('select', { name: 'expires' }, [['', 'never'], ['1', 'in a day'], ['30', 'in 30 days'], ['90', 'in 90 days'], ['365', 'in a year']].map(([v, t]) => h('option', { value: v }, t))))],
    run: async (f) => {
      const days = Number(f.get('expires'));
      const body = { name: f.get('name').trim(), tenant: f.get('tenant') || undefined, models: f.getAll('models'), scopes: f.getAll('scopes'), expires_at: days ? new Date(Date.now() + days * DAY).toISOString() : undefined };
      if (!body.models.length) delete body.models;
      if (!body.scopes.length) delete body.scopes;
      return (await api('POST', '/keys?wait=applied', { body })).body;
    },
  });
  if (!out) return;
  live.now();
  await showSecret(out);
}

function showSecret({ key, secret }) {
  const value = h('input', { class: 'mono', id: 'secret', readonly: true, value: secret, 'aria-label': 'Secret', onfocus: (e) => e.target.select() });
  const said = h('span', { role: 'status', class: 'hint' });
  const button = h('button', { type: 'button', class: 'primary', onclick: async () => {
    const done = await copy(secret);
    if (!done) value.focus();
    fillIn(said, done ? [icon('check'), ' Copied'] : 'The browser does not allow it; the text is selected, copy it with Ctrl-C.');
  } }, 'Copy');
  return inform(`Key ${key.name} created`, [h('p', { class: 'notice warn' }, icon('warn'), ' This is the only time that the secret is shown. It is stored as a hash.'), h('div', { class: 'row' }, value, button), said,
    h('div', { class: 'scroll', role: 'region', 'aria-label': 'Example command', tabindex: '0' }, h('pre', null, `export OPENAI_API_KEY=${secret}\ncurl http://127.0.0.1:8080/v1/models -H "authorization: Bearer $OPENAI_API_KEY"`))], { close: 'I have stored it' });
}

start();
byId('create').addEventListener('click', create);
let shown = '';
const live = poll(async () => {
  const [keys, status] = await Promise.all([list('/keys'), get('/status')]);
  failing(null);
  el.removeAttribute('aria-busy');
  fillIn(byId('auth-note'), status.body.auth !== 'keys' && h('p', { class: 'notice' }, 'The data plane asks for no keys at the moment (', h('code', null, 'auth.data: none'), '). Keys work all the same: they carry their tenant and scopes.'));
  const text = JSON.stringify([keys, Math.floor(Date.now() / 30_000)]);
  if (text === shown) return; // nothing to redraw under the reader's focus
  shown = text;
  const order = { active: 0, expired: 1, revoked: 2 };
  keys.sort((a, b) => order[a.state] - order[b.state] || b.created_at.localeCompare(a.created_at));
  if (!keys.length) fillIn(el, emptyState('No keys yet', 'Applications send a key as their OpenAI API key. Its secret is shown once, when it is made.', `curl -X POST ${location.origin}${root}/admin/v1/keys -H 'content-type: application/json' -d '{"name": "my-app"}'`));
  else fillIn(el, keys.cut && h('p', { class: 'notice warn' }, `Only ${keys.length} keys are shown; the API lists all.`), h('div', { class: 'panel' }, tableRegion('API keys', ['Name', 'State', 'Tenant', 'May use', 'Created', 'Expires', { text: h('span', { class: 'visually-hidden' }, 'Actions') }], keys.map(row))));
}, { every: 4000, staleAfter: 12_000, tell: freshness, failed: (err) => { failing(err); if (!shown) fillIn(el, errorState(err, () => live.now())); } });
