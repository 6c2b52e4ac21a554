// SPDX-License-Identifier: Apache-2.0
// The recent past of an experiment's live figures, kept for this tab.

const KEEP = 15 * 60_000;
const GAP = 15_000; // a longer silence is drawn as one
const FIELDS = {
  rps: 'rps_1m', success: 'success_ratio', ttft: 'ttft_p95_seconds', duration: 'duration_p95_seconds', tokens: 'output_tokens_per_second', cost: 'cost_usd_per_hour',
};

/** Samples by time: {t, arms: {variant: {rps, …}}}, at most 15 minutes of them. */
export class Series {
  constructor(key) {
    this.store = `sluice-series-${key}`;
    this.samples = [];
    this.saved = 0;
    try {
      const old = JSON.parse(sessionStorage.getItem(this.store) ?? '[]');
      if (Array.isArray(old)) this.samples = old.filter((s) => typeof s?.t === 'number' && s.arms && s.t > Date.now() - KEEP && s.t <= Date.now());
    } catch { /* begin anew */ }
  }

  add(arms, t = Date.now()) {
    const sample = { t, arms: {} };
    for (const a of arms) {
      const one = {};
      for (const [name, field] of Object.entries(FIELDS)) if (typeof a[field] === 'number') one[name] = Number(a[field].toPrecision(4));
      sample.arms[a.variant] = one;
    }
    this.samples.push(sample);
    while (this.samples.length && this.samples[0].t < t - KEEP) this.samples.shift();
    if (t - this.saved > 10_000) {
      this.saved = t;
      try { sessionStorage.setItem(this.store, JSON.stringify(this.samples)); } catch { /* no room: this page's memory is enough */ }
    }
  }

  /** When the samples begin, at the earliest at from and at least a minute ago. */
  begin(from, now) { return Math.max(from, Math.min(this.samples[0]?.t ?? now, now - 60_000)); }

  /** Points [t, value or null] of one variant since a time; null marks a gap. */
  points(variant, name, since) {
    const out = [];
    let last = 0;
    for (const s of this.samples) {
      if (s.t < since) continue;
      if (last && s.t - last > GAP) out.push([s.t - 1, null]);
      out.push([s.t, s.arms[variant]?.[name] ?? null]);
      last = s.t;
    }
    return out;
  }
}
