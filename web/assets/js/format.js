// SPDX-License-Identifier: Apache-2.0
// Values as people read them. A value that is not there is a dash, never 0.

export const NONE = '–';
const NB = '\u00a0'; // a number and its unit stay on one line
const there = (v) => typeof v === 'number' && Number.isFinite(v);
const int = new Intl.NumberFormat('en-US');

export const count = (v) => (there(v) ? int.format(Math.round(v)) : NONE);

/** Basis points: 1234 → "12.34 %"; short drops trailing zeros. */
export const percentOf = (bp) => `${(bp / 100).toFixed(2)}${NB}%`;
export const percentShort = (bp) => `${Number((bp / 100).toFixed(2))}${NB}%`;

/** A ratio 0..1 as percent; 99.996 does not become 100. */
export function ratio(v) {
  if (!there(v)) return NONE;
  const p = v * 100;
  if (p === 100 || p === 0) return `${p}${NB}%`;
  const digits = p > 99 || p < 1 ? 2 : 1;
  const shown = p.toFixed(digits);
  return Number(shown) >= 100 ? `>${NB}${(100 - 10 ** -digits).toFixed(digits)}${NB}%` : `${shown}${NB}%`;
}

export function rate(v) {
  if (!there(v)) return NONE;
  if (v >= 100) return int.format(Math.round(v));
  return v.toFixed(v >= 10 ? 1 : 2);
}

/** Seconds. */
export function seconds(v) {
  if (!there(v)) return NONE;
  if (v < 0.001) return `${Math.round(v * 1e6)}${NB}µs`;
  if (v < 1) return `${Math.round(v * 1000)}${NB}ms`;
  return v < 10 ? `${v.toFixed(2)}${NB}s` : `${v.toFixed(1)}${NB}s`;
}

export function usd(v) {
  if (!there(v)) return NONE;
  if (v === 0) return '$0';
  if (v < 0.01) return `$${v.toPrecision(2)}`;
  return `$${v >= 100 ? int.format(Math.round(v)) : v.toFixed(2)}`;
}

export function compact(v) {
  if (!there(v)) return NONE;
  if (v < 10000) return int.format(Math.round(v));
  if (v < 1e6) return `${(v / 1e3).toFixed(1)}${NB}k`;
  return `${(v / 1e6).toFixed(2)}${NB}M`;
}

const isTime = (t) => t && !t.startsWith('0001-');

/** "12 s ago"; the exact time belongs into a title. */
export function ago(t, now = Date.now()) {
  if (!isTime(t)) return NONE;
  const s = Math.round((now - Date.parse(t)) / 1000);
  if (s < 5) return 'just now';
  if (s < 60) return `${s}${NB}s ago`;
  if (s < 3600) return `${Math.floor(s / 60)}${NB}min ago`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)}${NB}h ago`;
  return `${Math.floor(s / 86400)} days ago`;
}

export function when(t) {
  return isTime(t) ? new Date(t).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'medium' }) : NONE;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString('en-GB');

/** "12.5" → 1250 basis points, exactly; null where it is no percentage with two decimals. */
export function parsePercent(text) {
  const m = /^\s*(\d{1,3})(?:[.,](\d{0,2}))?\s*%?\s*$/.exec(text);
  if (!m) return null;
  const bp = Number(m[1]) * 100 + Number((m[2] ?? '').padEnd(2, '0'));
  return bp <= 10000 ? bp : null;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** ["a","b","c"] → "a, b and c". */
export const words = (list) => (list.length < 2 ? list.join('') : `${list.slice(0, -1).join(', ')} and ${list.at(-1)}`);
