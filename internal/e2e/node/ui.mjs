// The UI in a real browser against a running gateway. SLUICE_ADMIN is the admin
// listener's address with its base path, SLUICE_DATA the data plane's; with
// SLUICE_TOKEN only what concerns the token is tried. Prints `ok NAME` or
// `FAIL NAME: …` for each case; the exit status is the number of failures.
// The experiment `chat-v2` has the variants control (baseline), canary and third.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const ADMIN = process.env.SLUICE_ADMIN.replace(/\/$/, ''), DATA = process.env.SLUICE_DATA, TOKEN = process.env.SLUICE_TOKEN ?? '';
const KEY = 'chat-v2', ORIGIN = new URL(ADMIN).origin, WAIT = 20_000;
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

async function api(method, path, body, headers = {}) {
  const r = await fetch(`${ADMIN}/admin/v1${path}`, {
    method, headers: { 'content-type': 'application/json', ...(TOKEN && { authorization: `Bearer ${TOKEN}` }), ...headers }, body: body && JSON.stringify(body),
  });
  return { status: r.status, etag: r.headers.get('etag'), body: await r.json().catch(() => null) };
}

async function weights(set, reason) {
  const now = await api('GET', `/experiments/${KEY}`);
  if (set) assert.equal((await api('PUT', `/experiments/${KEY}/weights`, { weights: set, reason }, { 'if-match': now.etag })).status, 200, 'weights are set');
  return (await api('GET', `/experiments/${KEY}/weights`)).body.weights;
}

async function state() { return (await api('GET', `/experiments/${KEY}`)).body.state; }

async function running() {
  const now = await api('GET', `/experiments/${KEY}`);
  if (now.body.state !== 'running') assert.equal((await api('POST', `/experiments/${KEY}:start?wait=applied`, {}, { 'if-match': now.etag })).status, 200, 'it starts again');
}

/** Sends one request for each user; returns the variants that served them. */
async function traffic(n, prefix = 'u') {
  const seen = [];
  for (let i = 0; i < n; i++) {
    const r = await fetch(`${DATA}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json', 'x-user-id': `${prefix}${i}` }, body: JSON.stringify({ model: 'chat', messages: [{ role: 'user', content: 'hi' }] }) });
    await r.arrayBuffer();
    assert.equal(r.status, 200);
    seen.push(r.headers.get('x-sluice-variant'));
  }
  return seen;
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

const failures = [];
let foreign = [], noise = [], expected = [];

/** A page in a context of its own; what it logs and where it calls is kept. */
async function open(path, { scheme = 'light', width = 1280, init } = {}) {
  const context = await browser.newContext({ colorScheme: scheme, viewport: { width, height: 900 }, permissions: ['clipboard-read', 'clipboard-write'] });
  context.setDefaultTimeout(WAIT);
  context.setDefaultNavigationTimeout(WAIT);
  const page = await context.newPage();
  page.on('request', (r) => { if (!r.url().startsWith(`${ORIGIN}/`) && !r.url().startsWith('data:')) foreign.push(r.url()); });
  page.on('console', (m) => { if (m.type() === 'error' && !expected.some((e) => m.text().includes(e))) noise.push(`${m.text()} ${m.location().url}`); });
  page.on('pageerror', (e) => noise.push(e.stack));
  if (init) await init(page);
  await page.goto(`${ADMIN}/ui${path}`);
  return page;
}

const openExperiment = async (options) => {
  const page = await open(`/experiments/${KEY}`, options);
  await page.locator('#w-control').waitFor();
  return page;
};

const button = (page, name) => page.getByRole('button', { name, exact: true });
const until = async (what, check) => {
  for (const end = Date.now() + WAIT; ;) {
    if (await check()) return;
    if (Date.now() > end) throw new Error(`not within ${WAIT / 1000} s: ${what}`);
    await new Promise((r) => { setTimeout(r, 100); });
  }
};

const setWeight = async (page, values) => { for (const [name, v] of Object.entries(values)) await page.locator(`#w-${name}`).fill(v); };

// What GET …/ramp says of a ramp in its second step, and a guardrail of it.
const verdict = (name, decision, code, more) => ({ name, metric: name, kind: 'rate', decision, code, action: 'rollback', require: 'pass', canary: { n: 120, k: 1 }, baseline: { n: 1080, k: 3 }, units: 20, bad_units: 1, need_units: 20, need_bad_units: 3, need_bad_trials: 5,
  log_e: { fail_rel: 0.2, fail_abs: -3, pass_rel: 1.9, pass_abs: 2.2, fail_at: 9.2, pass_at: 3 }, bound: { tolerate_ratio: 1.5, pass_ratio: 2, max_rate: 0.1, ok_rate: 0.02, min_effect_rate: 0.01 }, ...more });
const report = (more) => ({ experiment: KEY, generation: 1, at: new Date().toISOString(), state: 'running', phase: 'ramping', variant: 'canary', step: 1, steps: [{ weight: 500 }, { weight: 1000 }, { weight: 5000, approve: true }, { weight: 9900 }], since: new Date(Date.now() - 42_000).toISOString(), weights: {}, baseline: 'control',
  decision: { action: 'continue', code: 'open', text: 'slow_ttfa is not proved yet' }, why_not: ['slow_ttfa is not proved yet', 'the step lasts for 42 s, min_duration is 60 s'], data_age_s: 1.2,
  arms: [{ name: 'control', baseline: true, weight: 9000, units: 271, started: 610, rate: 12.1, ready: 1, capacity: 0 }, { name: 'canary', weight: 1000, units: 88, started: 190, rate: 4.02, ready: 1, capacity: 0 }],
  treatments: [{ name: 'canary', ramping: true, weight: 1000, units: 88, needs: [{ guardrail: 'slow_ttfa', trials: 40, time_s: 19 }], verdicts: [verdict('error', 'PASS', 'absolute'), verdict('slow_ttfa', 'OPEN', 'inconclusive'),
    verdict('output_tokens', 'OPEN', 'inconclusive', { kind: 'mean', require: 'no_fail', value: 0.31, bound: { max: 1 }, interval: { lower: 0.12, upper: 0.55 } }), verdict('restarts', 'PASS', 'under_max', { kind: 'limit', value: 0, bound: { max: 3 } })] }],
  ready: { ok: true }, head_room: { ok: true, text: 'control has no max_in_flight' }, forecast: [{ step: 2, weight: 5000, rate: 8, users: 150, time_s: 32, ok: true, text: '' }], rollback_cost: { requests_per_second: 4, calls: 3, head_room: true, text: 'control gets 4.0 requests/s more, about 3 calls at once' }, supervised: true, leader: 'host-1', ticks: 42, suspended: 0, replicas: 1, ...more });

/** The experiment page as if its ramp stood so; posts() are the verbs that were sent. */
async function openRamp(r, options) {
  const posts = [];
  const page = await openExperiment({ ...options, init: async (p) => {
    await p.route(`**/admin/v1/experiments/${KEY}`, async (route) => {
      const headers = { ...route.request().headers() };
      delete headers['if-none-match'];
      try {
        const answer = await route.fetch({ headers }), body = await answer.json();
        await route.fulfill({ response: answer, json: { ...body, state: r.state, ramp_state: { phase: r.phase } } });
      } catch { /* the page is closed meanwhile */ }
    });
    await p.route(`**/admin/v1/experiments/${KEY}/ramp`, (route) => route.fulfill({ json: r }));
    await p.route(`**/admin/v1/experiments/${KEY}:*`, (route) => { posts.push([new URL(route.request().url()).pathname.split(':').pop(), route.request().postDataJSON()]); return route.fulfill({ json: {} }); });
  } });
  await page.locator('#ramp .rungs').waitFor();
  return { page, posts };
}

const cases = {
  async list_shows_the_experiment() {
    await traffic(60);
    const page = await open('');
    const card = page.locator('.card', { hasText: KEY });
    await card.waitFor();
    const text = await card.innerText();
    for (const want of ['Running', 'control', 'canary', 'third', 'TTFT p95']) assert.ok(text.includes(want), `the card shows ${want}: ${text}`);
    await until('the success ratio is there', async () => /100\s%/.test(await card.locator('.mini').innerText()));
    await page.locator('#filter-text').fill('no-such-thing');
    await page.getByText('Nothing matches').waitFor();
    assert.ok(page.url().includes('q=no-such-thing'), 'the filter is in the address');
  },

  async totals_agree_with_the_api() {
    const page = await openExperiment();
    const row = page.locator('#stored tbody tr', { hasText: 'control' });
    await row.waitFor();
    await page.reload(); // all is stored by now; nothing is sent meanwhile
    await row.waitFor();
    const want = (await api('GET', `/experiments/${KEY}/results`)).body.stored.find((v) => v.variant === 'control');
    const cells = (await row.locator('td').allInnerTexts()).map((t) => t.split('\n')[0]);
    assert.ok(want.requests > 0 && want.output_tokens > 0, 'there is something to show');
    assert.equal(cells[0], String(want.requests));
    assert.equal(cells[8], String(want.output_tokens));
    // The requests here are not streamed: they have no time to first token.
    assert.equal(cells.filter((c) => c === '–').length, 2, `every other figure is there: ${cells}`);
  },

  async weights_preview_and_save() {
    await weights({ control: 8000, canary: 1000, third: 1000 });
    const page = await openExperiment();
    await setWeight(page, { control: '70.00' });
    await page.getByText('missing').waitFor();
    assert.ok(await button(page, 'Save weights').isDisabled(), 'a sum of 90 % cannot be saved');
    await setWeight(page, { canary: '20.00' });
    const preview = page.locator('.preview');
    await preview.getByText('Safe').waitFor();
    assert.match((await preview.innerText()).replace(/\s+/g, ' '), /10\.00 % of units move.*control → B canary 10\.00 %.*Nobody else moves/);
    await button(page, 'Save weights').click();
    await page.getByText('Weights saved').waitFor();
    assert.deepEqual(await weights(), { control: 7000, canary: 2000, third: 1000 });
    await page.locator('#weights').getByLabel('Raise canary by 1 percent').click();
    assert.equal(await page.locator('#w-canary').inputValue(), '21.00');
    assert.equal(await page.locator('#w-control').inputValue(), '69.00', 'the baseline gives what a step takes');
    await button(page, 'Split evenly').click();
    assert.equal(await page.locator('#w-control').inputValue(), '33.34');
    await button(page, 'Discard').click();
    assert.equal(await page.locator('#w-control').inputValue(), '70.00');
  },

  async carry_over_needs_a_reason() {
    await weights({ control: 7000, canary: 2000, third: 1000 });
    const page = await openExperiment();
    await setWeight(page, { canary: '15', third: '15' });
    await page.locator('.preview').getByText('Carries over').waitFor();
    assert.ok(await button(page, 'Save weights').isDisabled(), 'without a reason it cannot be saved');
    await page.locator('#w-reason').fill('third looks better <img src=x onerror=alert(1)>');
    await button(page, 'Save weights').click();
    await page.getByText('Weights saved').waitFor();
    assert.deepEqual(await weights(), { control: 7000, canary: 1500, third: 1500 });
    await page.locator('#history').getByText('third looks better <img').waitFor();
  },

  async conflict_never_overwrites() {
    await weights({ control: 8000, canary: 1000, third: 1000 }, 'begin');
    let hold = false;
    const held = [];
    expected = ['412'];
    const page = await openExperiment();
    await page.route(`**/admin/v1/experiments/${KEY}`, (r) => (hold ? held.push(r) : r.continue()));
    page.on('response', (r) => { if (r.status() === 412) { hold = false; held.splice(0).forEach((one) => one.continue().catch(() => {})); } });
    await setWeight(page, { control: '60', canary: '30' });
    await page.locator('.preview').getByText('units move').waitFor();
    hold = true; // the page must not learn of it by its own polls
    await weights({ control: 9000, canary: 500, third: 500 });
    await button(page, 'Save weights').click();
    const conflict = page.locator('#w-conflict');
    await conflict.waitFor();
    const text = (await conflict.innerText()).replace(/\s+/g, ' ');
    for (const want of ['80.00 %', '90.00 %', '60.00 %']) assert.ok(text.includes(want), `the conflict shows ${want}: ${text}`);
    assert.deepEqual(await weights(), { control: 9000, canary: 500, third: 500 }, 'theirs stands');
    assert.equal(await page.locator('#w-control').inputValue(), '60.00', 'mine is still there');
    await button(page, 'Put mine on top of theirs').click();
    await page.locator('.preview').getByText('units move').waitFor();
    await button(page, 'Save weights').click();
    await page.getByText('Weights saved').waitFor();
    assert.deepEqual(await weights(), { control: 6000, canary: 3000, third: 1000 });
  },

  async rollback_by_button_and_start_again() {
    await running();
    await weights({ control: 4000, canary: 3000, third: 3000 }, 'spread');
    await traffic(40);
    const page = await openExperiment();
    await button(page, 'Roll back to control…').click();
    const dialog = page.getByRole('dialog');
    await dialog.waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Cancel', 'the focus begins on Cancel');
    const text = (await dialog.innerText()).replace(/\s+/g, ' ');
    assert.match(text, /60 % of units are on canary and third now.*about [1-9]\d* units/, text);
    await page.keyboard.press('Enter');
    await dialog.waitFor({ state: 'detached' });
    assert.equal(await state(), 'running', 'Enter by habit changes nothing');
    await button(page, 'Roll back to control…').click();
    await dialog.getByLabel(/Reason/).fill('errors');
    await dialog.locator('[data-confirm]').click();
    await page.getByText('Your rollback is in force.').waitFor();
    assert.equal(await state(), 'rolled_back');
    assert.deepEqual([...new Set(await traffic(40))], ['control'], 'every request gets the baseline');
    await page.getByRole('button', { name: /^Start again as/ }).click();
    await dialog.getByText('A new generation begins').waitFor();
    await dialog.locator('[data-confirm]').click();
    await until('it runs', async () => await state() === 'running');
    await page.locator('#exp-meta').getByText('Running').waitFor();
  },

  async rollback_by_keyboard() {
    await running();
    const page = await openExperiment();
    await page.locator('#assign-unit').press('r'); // typing is not a command
    assert.equal(await page.getByRole('dialog').count(), 0);
    await page.locator('h1').click();
    await page.keyboard.press('r');
    await page.getByRole('dialog').waitFor();
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Roll back to control');
    await page.keyboard.press('Enter');
    await page.getByText('Your rollback is in force.').waitFor();
    assert.equal(await state(), 'rolled_back');
    assert.deepEqual([...new Set(await traffic(40, 'k'))], ['control']);
    await running();
  },

  async pause_and_resume() {
    await running();
    const page = await openExperiment();
    for (const [name, want, word] of [['Pause', 'paused', 'Paused'], ['Resume', 'running', 'Running']]) {
      await button(page, `${name}…`).click();
      await page.getByRole('dialog').locator('[data-confirm]').click();
      await page.locator('#exp-meta .chip', { hasText: word }).waitFor();
      assert.equal(await state(), want);
    }
  },

  async kill_takes_a_variant_out() {
    await running();
    const page = await openExperiment();
    await button(page, 'Kill third').click();
    await page.getByRole('dialog').locator('[data-confirm]').click();
    await page.locator('#variants .tag', { hasText: 'killed' }).waitFor();
    const seen = new Set(await traffic(60));
    assert.ok(!seen.has('third') && seen.has('canary'), `served by ${[...seen]}`);
    await button(page, 'Kill third').click({ force: true }); // it says why not, and asks nothing
    await page.getByText('Not possible: it is killed.').waitFor();
    assert.equal(await page.getByRole('dialog').count(), 0);
  },

  async stale_and_back() {
    expected = ['ERR_FAILED', 'Failed to load resource'];
    const page = await openExperiment({ init: (p) => p.clock.install() });
    await page.locator('#freshness[data-state=live]').waitFor();
    await page.route('**/admin/v1/live', (r) => r.abort());
    await page.clock.runFor(10_000);
    await page.getByText(/Stale: last answer \d+ s ago/).waitFor();
    assert.ok(await page.locator('#live table').isVisible(), 'the last figures stay, marked');
    await page.unroute('**/admin/v1/live');
    await page.locator('#freshness[data-state=live]').waitFor();
  },

  async hidden_tab_asks_nothing() {
    const page = await openExperiment({ init: (p) => p.clock.install() });
    await page.locator('#freshness[data-state=live]').waitFor();
    const show = (hidden) => page.evaluate((h) => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => h });
      document.dispatchEvent(new Event('visibilitychange'));
    }, hidden);
    await show(true);
    await page.locator('#freshness[data-state=paused]').waitFor();
    await page.waitForLoadState('networkidle'); // what was under way ends
    let asked = 0;
    page.on('request', () => { asked++; });
    await page.clock.runFor(60_000);
    await page.waitForTimeout(300); // real ones: a request takes a moment to be seen
    assert.equal(asked, 0, 'requests while hidden');
    await show(false);
    await until('it asks again', () => asked > 0);
    await page.locator('#freshness[data-state=live]').waitFor();
  },

  async assignment_tester() {
    await running();
    const page = await openExperiment();
    for (const unit of ['alice', 'a/b c%?#ü']) {
      await page.locator('#assign-unit').fill(unit);
      await button(page, 'Look up').click();
      await page.locator('#assign-result').getByText(`user::${unit}`, { exact: true }).waitFor();
      const want = (await api('GET', `/experiments/${KEY}/assignments/${encodeURIComponent(unit)}`)).body;
      assert.equal(await page.locator('.answer strong').innerText(), want.variant);
      assert.ok((await page.locator('.facts').innerText()).includes(`${want.bucket} of 10,000`));
    }
  },

  async ramp_says_where_it_is_and_why() {
    await running();
    const { page } = await openRamp(report());
    const text = async (sel) => (await page.locator(sel).innerText()).replace(/\s+/g, ' ');
    const ramp = await text('#ramp');
    for (const want of [/Ready passed 5 % passed 10 % now for 4\d s 50 % to come about 32 s needs approval 99 % to come/, /Slow_ttfa is not proved yet/, /Why it is not advancing: the step lasts for 42 s, min_duration is 60 s/, /canary 88 units, 190 requests in this step/, /Decided by host-1/]) assert.match(ramp, want);
    assert.equal(await page.locator('[aria-current=step]').count(), 1);
    assert.match(await text('#guard-summary'), /4 guardrails: 2 passing, 2 pending/);
    const row = async (name) => (await page.locator('#guardrails tr', { hasText: name }).innerText()).replace(/\s+/g, ' ');
    assert.match(await row('Errors'), /Passing against its fixed bound 0\.83 % ≤ 1\.00 % 0\.28 % 1 of 120 baseline 3 of 1,080 20 or more/);
    assert.match(await row('Slow first answer'), /Pending not proved either way about 40 trials more, about 19 s/);
    assert.match(await row('Output tokens'), /\+31 % \+12 % to \+55 % ≤ \+100 %/);
    await page.getByRole('img', { name: 'proof of health 73 %, of harm 2 %' }).first().waitFor();
    await check(page, 'ramp');
  },

  async ramp_is_moved_by_hand() {
    await running();
    const { page, posts } = await openRamp(report({ phase: 'holding', approval: { weight: 5000, approve: true }, decision: { action: 'hold', code: 'no_data', text: 'no trial lately' }, why_not: [] }));
    const dialog = page.getByRole('dialog');
    await button(page, 'Advance…').click();
    assert.match((await dialog.innerText()).replace(/\s+/g, ' '), /40 % of units move from control to canary.*not proved that this is safe: slow_ttfa is not proved yet/);
    await dialog.locator('[data-confirm]').click();
    assert.equal(posts.length, 0, 'without force and a reason nothing is sent');
    await check(page, 'advance dialog');
    await dialog.getByLabel('Advance all the same').check();
    await dialog.getByLabel(/Reason/).fill('looked at it');
    await dialog.locator('[data-confirm]').click();
    await page.getByText('Advanced.').waitFor();
    await button(page, 'Approve step…').click();
    await dialog.locator('[data-confirm]').click();
    await page.getByText('Approved.').waitFor();
    await button(page, 'Promote…').click();
    await dialog.getByLabel('Promote all the same').check();
    await dialog.getByLabel(/Reason/).fill('sure');
    await dialog.locator('[data-confirm]').click();
    await page.getByText('Promoted canary.').waitFor();
    await page.locator('h1').click();
    await page.keyboard.press('r');
    assert.match((await dialog.innerText()).replace(/\s+/g, ' '), /It costs: control gets 4\.0 requests\/s more, about 3 calls at once/, 'the rollback says what it costs');
    await dialog.locator('[data-confirm]').click();
    await page.getByText('Rolled back: control serves everybody.').first().waitFor();
    assert.deepEqual(posts, [['advance', { force: true, reason: 'looked at it' }], ['approve', {}], ['promote', { variant: 'canary', force: true, reason: 'sure' }], ['rollback', {}]]);
  },

  async before_the_start_there_is_a_forecast_and_a_preflight() {
    await running();
    const forecast = { steps: report().forecast, time_s: 90, text: 'at today\'s traffic 1 step and the bake take about 2m', warnings: ['take care'] };
    const result = (state, more) => ({ state, ...more });
    const preflight = { ok: false, text: '31 % of your requests use tools; canary rejects them', baseline: 'control', variants: ['control', 'canary'], probes: [
      { name: 'tools_auto', asks: 'use tools', share: 0.31, results: [result('passed', { variant: 'control' }), result('failed', { variant: 'canary', blocks: true, text: 'status 400' })] },
      { name: 'image', asks: 'send images', results: [result('skipped', { variant: 'control' }), result('skipped', { variant: 'canary' })] }] };
    const page = await openExperiment({ init: async (p) => {
      await p.route(`**/admin/v1/experiments/${KEY}`, async (route) => {
        const headers = { ...route.request().headers() };
        delete headers['if-none-match'];
        try {
          const answer = await route.fetch({ headers }), body = await answer.json();
          await route.fulfill({ response: answer, json: { ...body, state: 'draft', ramp: {} } });
        } catch { /* the page is closed meanwhile */ }
      });
      await p.route(`**/admin/v1/experiments/${KEY}/forecast`, (route) => route.fulfill({ json: forecast }));
      await p.route(`**/admin/v1/experiments/${KEY}:preflight`, (route) => route.fulfill({ json: preflight }));
    } });
    await page.locator('#forecast').getByText('about 32').waitFor();
    await page.getByText('take care').waitFor();
    await button(page, 'Run preflight').click();
    await page.locator('#preflight').getByText('31 % of your requests use tools; canary rejects them').waitFor();
    const row = (await page.locator('#preflight tr', { hasText: 'use tools' }).innerText()).replace(/\s+/g, ' ');
    assert.match(row, /use tools 31\.0 % passes fails stands in the way status 400/);
    await check(page, 'preflight');
  },

  async narrow_ramp_does_not_scroll_sideways() {
    await running();
    for (const width of [400, 320]) {
      const { page } = await openRamp(report(), { width });
      const [content, view] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(content <= view, `it is ${content} px wide in ${view}`);
    }
  },

  async keys_shown_once_and_revoked() {
    const page = await open('/keys');
    await button(page, 'Create key').click();
    const name = 'app <b>bold</b>';
    await page.getByRole('dialog').locator('[name=name]').fill(name);
    await page.getByRole('dialog').locator('[data-confirm]').click();
    const secret = await page.locator('#secret').inputValue();
    assert.match(secret, /^sk-sluice-[0-9a-f]{64}$/);
    await button(page, 'Copy').click();
    await page.getByText('Copied').waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), secret);
    await button(page, 'I have stored it').click();
    await button(page, `Revoke ${name}`).click();
    assert.ok(!(await page.content()).includes(secret), 'the secret is gone from the page');
    await page.getByRole('dialog').locator('[data-confirm]').click();
    await page.locator('tr', { hasText: name }).getByText('Revoked', { exact: true }).waitFor();
    assert.equal((await api('GET', '/keys')).body.items.find((k) => k.name === name).state, 'revoked');
  },

  async upstreams_and_audit() {
    const page = await open('/upstreams');
    await page.getByText('1 of 1 ready').first().waitFor();
    assert.ok((await page.locator('#list').innerText()).includes(KEY), 'an upstream names its experiment');
    for (const [verb, state, drained] of [['Drain…', 'Drained', true], ['Enable…', 'Ready', false]]) {
      const name = (await page.locator(`button[aria-label^="${verb} http"]`).first().getAttribute('data-upstream'));
      await page.locator(`button[aria-label^="${verb} http"]`).first().click();
      await page.getByRole('dialog').locator('[data-confirm]').click();
      await page.locator(`section[aria-labelledby="u-${name}"]`).getByText(state, { exact: true }).waitFor();
      assert.equal((await api('GET', `/upstreams/${name}/status`)).body.endpoints[0].drained, drained, `${verb} ${name}`);
    }
    await page.keyboard.press('g');
    await page.keyboard.press('a');
    await page.waitForURL('**/ui/audit');
    await page.locator('.audit').first().waitFor();
    await page.locator('#filter-action').fill('experiment.rollback');
    await button(page, 'Filter').click();
    await until('only rollbacks', async () => (await page.locator('.audit strong').allInnerTexts()).every((t) => t === 'Rolled back'));
    await button(page, 'Verify chain').click();
    await page.getByText('Every hash follows').waitFor();
  },

  async help_and_theme() {
    const page = await open('');
    await page.locator('.card').waitFor();
    await page.keyboard.press('?');
    await page.getByRole('dialog').getByText('Experiments', { exact: true }).waitFor();
    await page.getByLabel('Switch single-key shortcuts off').check();
    await page.keyboard.press('Escape');
    await page.keyboard.press('?');
    assert.equal(await page.getByRole('dialog').count(), 0, 'shortcuts are off');
    for (const want of ['light', 'dark']) {
      await page.locator('#theme').click();
      await page.reload();
      assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), want);
    }
    assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), 'rgb(14, 19, 27)');
  },

  async missing_things_say_so() {
    expected = ['404'];
    await (await open('/nothing')).getByRole('heading', { name: 'Nothing is here' }).waitFor();
    await (await open('/experiments/no-such-one')).getByText('This experiment does not exist').waitFor();
  },

  async charts_have_words_and_tables() {
    const page = await openExperiment();
    const chart = page.getByRole('img', { name: /^Requests\/s, now: control/ });
    await chart.waitFor();
    await chart.focus();
    await page.keyboard.press('ArrowLeft');
    await page.locator('.figure [aria-live]').first().getByText(/control .*canary/).waitFor({ state: 'attached' });
    await page.locator('h1').click();
    await page.keyboard.press('t');
    assert.equal(await page.locator('.chart-table:visible').count(), 6);
  },

  async accessible_in_both_schemes() {
    for (const [path, ready] of [['', '.card'], [`/experiments/${KEY}`, '#stored table'], ['/upstreams', '.endpoints'], ['/keys', '#list table'], ['/audit', '.audit'], ['/x', '.head']]) {
      expected = path === '/x' ? ['404'] : [];
      const page = await open(path);
      await page.locator(ready).first().waitFor();
      await check(page, path || '/');
      if (path.startsWith('/experiments')) {
        await page.getByLabel('Raise canary by 1 percent').click();
        await page.locator('.preview').getByText('units move').waitFor();
        await page.keyboard.press('Escape');
        await check(page, 'weights being edited');
        await page.locator('h1').click();
        await page.keyboard.press('r');
        await page.getByRole('dialog').waitFor();
        await check(page, 'rollback dialog');
      }
      await page.context().close();
    }
  },

  async narrow_pages_do_not_scroll_sideways() {
    for (const path of ['', `/experiments/${KEY}`, '/upstreams', '/keys', '/audit']) {
      const page = await open(path, { width: 320 });
      await page.locator('#list .skeleton, #exp-body[aria-busy]').first().waitFor({ state: 'detached' });
      const [content, view] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(content <= view, `${path || '/'} is ${content} px wide in ${view}`);
      await page.context().close();
    }
  },
};

/** Looks at a page in both schemes; in the dark one only colours can differ. */
async function check(page, where) {
  await page.evaluate(axe);
  for (const [scheme, runOnly] of [
    ['light', ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']],
    ['dark', { type: 'rule', values: ['color-contrast', 'link-in-text-block'] }],
  ]) {
    await page.emulateMedia({ colorScheme: scheme });
    assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor === 'rgb(14, 19, 27)'), scheme === 'dark', `${where} is ${scheme}`);
    const found = await page.evaluate((only) => globalThis.axe.run(document, { runOnly: only, resultTypes: ['violations'] }), runOnly);
    const bad = found.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical');
    assert.equal(bad.length, 0, `${where}, ${scheme}: ${bad.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.target} ${n.failureSummary}`).join(' | ')}`).join('; ')}`);
  }
  await page.emulateMedia({ colorScheme: 'light' });
}

const tokenCases = {
  async token_is_asked_once() {
    expected = ['401'];
    const page = await open('');
    const field = page.getByLabel('Token', { exact: true });
    await field.waitFor();
    assert.equal(await page.locator('.card').count(), 0, 'no data without the token');
    await field.fill('wrong');
    await button(page, 'Continue').click();
    await page.getByText('The gateway refused that token.').waitFor();
    await field.fill(TOKEN);
    await button(page, 'Continue').click();
    const link = page.getByRole('link', { name: KEY });
    await link.waitFor();
    assert.ok(!(await page.evaluate(() => JSON.stringify(localStorage))).includes(TOKEN), 'the token is not kept beyond the tab');
    await link.click();
    await page.locator('#w-control').waitFor();
    assert.ok(page.url().startsWith(`${ADMIN}/ui/experiments/`), `links stay below the base path: ${page.url()}`);
    assert.equal(await page.getByRole('dialog').count(), 0, 'the next page does not ask');
    await button(page, 'Forget token').click();
    await field.waitFor();
  },
};

const only = process.argv[2];
for (const [name, run] of Object.entries(TOKEN ? tokenCases : cases)) {
  if (only && !name.includes(only)) continue;
  foreign = []; noise = []; expected = [];
  const begun = Date.now();
  try {
    await run();
    assert.deepEqual(foreign, [], 'requests that leave the origin');
    assert.deepEqual(noise, [], 'errors in the console');
    console.log(`ok ${name}`);
  } catch (err) {
    failures.push(name);
    console.log(`FAIL ${name}: ${String(err.message ?? err).replaceAll('\n', ' ').slice(0, 1500)}${noise.length ? ` [console: ${noise.join(' ').slice(0, 400)}]` : ''}`);
  }
  await Promise.all(browser.contexts().map((c) => c.close()));
  console.log(`${name} took ${Date.now() - begun} ms`);
}
await browser.close();
process.exit(failures.length);
