// SPDX-License-Identifier: Apache-2.0
// The figures of an experiment as tables, each against the baseline.
import { actionButton, emptyState, fillIn, h, refresh, tableRegion } from './dom.js';
import { NONE, compact, count, rate, ratio, seconds, usd, when } from './format.js';
import { nameOf } from './variants.js';

const td = (v, more) => h('td', { class: 'num' }, v, more);

// Bad outcomes first, so that they are not missed.
const order = ['upstream_error', 'upstream_timeout', 'upstream_unreachable', 'upstream_truncated', 'upstream_invalid', 'upstream_rate_limited', 'no_endpoint', 'queue_full', 'internal_error', 'client_error', 'rate_limited', 'budget_exceeded', 'canceled', 'shutting_down', 'success'];
const faults = new Set(order.slice(0, 9));

function outcomes(map) {
  const names = Object.keys(map ?? {}).filter((k) => map[k] > 0).sort((a, b) => order.indexOf(a) - order.indexOf(b));
  if (!names.length) return NONE;
  return h('ul', { class: 'outcomes' }, names.map((n) => h('li', { class: faults.has(n) ? 'fault' : undefined }, n, ' ', h('b', null, count(map[n])))));
}

/** "+61 %" against the baseline; worse says which direction is bad. */
function against(v, base, worse) {
  if (typeof v !== 'number' || typeof base !== 'number' || base === 0) return null;
  const change = (v - base) / base;
  if (Math.abs(change) < 0.01) return h('small', { class: 'delta' }, '± 0 %');
  const bad = worse && Math.sign(change) === worse && Math.abs(change) >= 0.1;
  return h('small', { class: `delta${bad ? ' worse' : ''}` }, `${change > 0 ? '+' : '−'}${Math.abs(change * 100).toFixed(0)} %`);
}

function points(v, base) {
  if (typeof v !== 'number' || typeof base !== 'number') return null;
  const d = (v - base) * 100;
  if (Math.abs(d) < 0.005) return h('small', { class: 'delta' }, '± 0 pp');
  return h('small', { class: `delta${d < -0.5 ? ' worse' : ''}` }, `${d > 0 ? '+' : '−'}${Math.abs(d).toFixed(2)} pp`);
}

const MORE_IS_WORSE = 1;

/** One row per variant: [name cell, …cells]. */
function rows(exp, of, cells) {
  const base = of(exp.baseline);
  return exp.variants.map((v, i) => {
    const d = of(v.name), b = v.name === exp.baseline ? undefined : base;
    return h('tr', null, h('th', { scope: 'row' }, nameOf(exp, i)), cells(d ?? {}, b ?? {}));
  });
}

const numeric = (text, title) => ({ text, num: true, title });

export function liveTable(el, exp, arms) {
  const head = ['Variant', numeric('Requests', 'since this replica started'), numeric('Req/s'), numeric('Success'), numeric('TTFT p50'), numeric('TTFT p95'), numeric('Duration p50'), numeric('Duration p95'),
    numeric('Output tok/s'), numeric('Cost/h', 'the window’s cost, projected'), numeric('Units', 'distinct units in the last hour, about 2 % off'), 'Outcomes'];
  refresh(el, tableRegion('Live figures by variant', head, rows(exp, (n) => arms.find((a) => a.variant === n), (d, b) => [
    h('td', { class: 'num', title: d.last_request_at && `last request ${when(d.last_request_at)}` }, count(d.requests)), td(rate(d.rps_1m)), td(ratio(d.success_ratio), points(d.success_ratio, b.success_ratio)),
    td(seconds(d.ttft_p50_seconds), against(d.ttft_p50_seconds, b.ttft_p50_seconds, MORE_IS_WORSE)), td(seconds(d.ttft_p95_seconds), against(d.ttft_p95_seconds, b.ttft_p95_seconds, MORE_IS_WORSE)),
    td(seconds(d.duration_p50_seconds), against(d.duration_p50_seconds, b.duration_p50_seconds, MORE_IS_WORSE)), td(seconds(d.duration_p95_seconds), against(d.duration_p95_seconds, b.duration_p95_seconds, MORE_IS_WORSE)),
    td(rate(d.output_tokens_per_second)), td(usd(d.cost_usd_per_hour)), td(count(d.units)), h('td', null, outcomes(d.outcomes))]), 'figures'));
}

export function storedTable(el, exp, results) {
  const { stored } = results;
  if (stored.every((s) => !s.requests)) {
    refresh(el, emptyState('No requests are stored yet', 'They appear here a few seconds after they end.'), notes(results));
    return;
  }
  const at = (q, p) => (q?.count ? q[`${p}_seconds`] : undefined);
  const ok = (d) => (typeof d.error_ratio === 'number' ? 1 - d.error_ratio : undefined);
  const per1k = (d) => (d.requests ? Number(d.cost_usd) / d.requests * 1000 : undefined);
  const head = ['Variant', numeric('Requests'), numeric('Units', 'distinct analysed units'), numeric('Success'), numeric('Fallbacks', 'requests that another variant answered'), numeric('TTFT p50'), numeric('TTFT p95'), numeric('Duration p95'),
    numeric('Input tok', 'and how many of them were cached'), numeric('Output tok'), numeric('Cost'), numeric('Per 1k req'), 'Outcomes'];
  refresh(el, tableRegion('Stored figures by variant', head, rows(exp, (n) => stored.find((s) => s.variant === n), (d, b) => [
    td(count(d.requests)), td(count(d.units)), td(ratio(ok(d)), points(ok(d), ok(b))), td(count(d.fallbacks)), td(seconds(at(d.ttft, 'p50'))),
    td(seconds(at(d.ttft, 'p95')), against(at(d.ttft, 'p95'), at(b.ttft, 'p95'), MORE_IS_WORSE)), td(seconds(at(d.duration, 'p95')), against(at(d.duration, 'p95'), at(b.duration, 'p95'), MORE_IS_WORSE)),
    td(compact(d.input_tokens), d.cached_tokens > 0 && h('small', { class: 'delta' }, `${compact(d.cached_tokens)} cached`)), td(compact(d.output_tokens)), td(d.unpriced_attempts ? ['≥ ', usd(Number(d.cost_usd))] : usd(Number(d.cost_usd))),
    td(usd(per1k(d)), against(per1k(d), per1k(b), MORE_IS_WORSE)), h('td', null, outcomes(d.outcomes))]), 'figures'), notes(results));
}

const notes = (results) => results.notes.length > 0 && h('ul', { class: 'notes' }, results.notes.map((n) => h('li', null, n)));

/** What each variant is: the one thing that differs should be plain. */
export function variantTable(el, exp, { onKill, whyNotKill, tell }) {
  const differs = (v) => [
    ...Object.entries(v.params ?? {}).map(([k, x]) => [`${k} = `, JSON.stringify(x)]),
    ...Object.entries(v.params_default ?? {}).map(([k, x]) => [`${k} ?= `, JSON.stringify(x)]),
    ...(v.params_remove ?? []).map((k) => [`drops ${k}`]),
    v.prompt && ['changes the system prompt'], v.fallback && [`falls back to ${v.fallback}`],
  ].filter(Boolean);
  const body = exp.variants.map((v, i) => {
    const why = v.name === exp.baseline ? 'it is the baseline' : v.state === 'killed' ? 'it is killed' : whyNotKill;
    return h('tr', null,
      h('th', { scope: 'row' }, nameOf(exp, i), v.name === exp.baseline && h('span', { class: 'tag' }, 'baseline'), v.state === 'killed' && h('span', { class: 'tag bad' }, 'killed'), exp.winner === v.name && h('span', { class: 'tag good' }, 'winner')),
      h('td', null, h('span', { class: 'mono' }, v.upstream), h('small', { class: 'sub mono' }, v.model || exp.model)), h('td', { class: 'mono' }, v.version || NONE),
      h('td', null, differs(v).length ? h('ul', { class: 'plainlist' }, differs(v).map((d) => h('li', { class: 'mono small' }, d))) : NONE),
      h('td', { class: 'end' }, v.name === exp.baseline ? null : actionButton('Kill…', { run: () => onKill(i), why, tell, cls: 'small danger-quiet', label: `Kill ${v.name}` })));
  });
  fillIn(el, tableRegion('Variants', ['Variant', 'Upstream', 'Version', 'Changes', ''].map((t) => t || { text: h('span', { class: 'visually-hidden' }, 'Actions') }), body));
}
