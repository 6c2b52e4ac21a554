// A whole rollout by hand, in a real browser against a running gateway with
// traffic: start, advance, promote, roll back, kill. Every click is checked
// through the admin API. SLUICE_ADMIN is the admin listener's address;
// SLUICE_SHOTS a folder for pictures. The experiment `chat-v2` is a draft with a
// ramp. Prints `ok NAME` or `FAIL NAME: …`.
import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';

const ADMIN = process.env.SLUICE_ADMIN, SHOTS = process.env.SLUICE_SHOTS ?? '', WAIT = 60_000;
const api = async (path) => (await fetch(`${ADMIN}/admin/v1/experiments/chat-v2${path}`)).json();

async function until(what, check) {
  for (const end = Date.now() + WAIT; ;) {
    const got = await check();
    if (got) return got;
    if (Date.now() > end) throw new Error(`not within ${WAIT / 1000} s: ${what}`);
    await new Promise((r) => { setTimeout(r, 100); });
  }
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
const context = await browser.newContext({ viewport: { width: 1280, height: 1400 } });
context.setDefaultTimeout(WAIT);
const page = await context.newPage();
const noise = [];
page.on('console', (m) => { if (m.type() === 'error') noise.push(m.text()); });
page.on('pageerror', (e) => noise.push(e.stack));
await page.goto(`${ADMIN}/ui/experiments/chat-v2`);
const button = (name) => page.getByRole('button', { name, exact: true });
const dialog = page.getByRole('dialog');
const shot = async (name) => { if (SHOTS) await page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage: true }); };

/** Confirms the open dialog with a reason, all the same where it asks for that. */
async function confirm(reason, force) {
  if (force) await dialog.getByLabel(force).check();
  await dialog.getByLabel(/Reason/).fill(reason);
  await dialog.locator('[data-confirm]').click();
  await dialog.waitFor({ state: 'hidden' });
}

const steps = {
  async start() {
    await button('Start…').click();
    await shot('start');
    await confirm('by hand');
    await until('it waits', async () => (await api('')).state === 'running');
    await page.locator('#ramp .rungs').waitFor();
    await until('its first step', async () => (await api('/ramp')).step === 0);
    await page.getByText('Why it is not advancing').waitFor();
    await shot('first-step');
  },
  async advance() {
    await button('Advance…').click();
    await shot('advance');
    await confirm('looked at it', 'Advance all the same');
    const ramp = await until('the second step', async () => { const r = await api('/ramp'); return r.step === 1 && r; });
    assert.equal(ramp.weights.canary, 2000);
    await page.locator('#ramp .rungs').getByText('now', { exact: true }).waitFor();
    await page.getByText('canary 20 %').first().waitFor();
  },
  async kill_and_roll_back_are_told_in_the_history() {
    await page.locator('h1').click();
    await page.keyboard.press('r');
    assert.match(await dialog.innerText(), /control/);
    await shot('rollback');
    await confirm('answers in the wrong language');
    await until('rolled back', async () => (await api('')).state === 'rolled_back');
    await page.getByText('answers in the wrong language').first().waitFor();
    await shot('rolled-back');
    const history = (await api('/history')).items.map((i) => `${i.event} ${i.text}`).join('\n');
    for (const part of [/rolled_back.*answers in the wrong language/, /advanced.*looked at it/, /started.*by hand/]) assert.match(history, part);
  },
  async start_again_and_kill() {
    await button('Start again…').click();
    await confirm('fixed');
    await until('its first step', async () => (await api('/ramp')).step === 0);
    await button('Kill canary').click();
    await confirm('no');
    await until('killed', async () => (await api('')).variants.some((v) => v.name === 'canary' && v.state === 'killed'));
    await page.getByText('killed').first().waitFor();
    await shot('killed');
  },
};

let failures = 0;
for (const [name, run] of Object.entries(steps)) {
  try {
    await run();
    assert.deepEqual(noise, [], 'errors in the console');
    console.log(`ok ${name}`);
  } catch (err) {
    failures++;
    await shot(`failed-${name}`);
    console.log(`FAIL ${name}: ${String(err.message ?? err).replaceAll('\n', ' ').slice(0, 1500)}`);
    break;
  }
}
await browser.close();
process.exit(failures);
