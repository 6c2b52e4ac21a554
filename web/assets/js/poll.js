// SPDX-License-Identifier: Apache-2.0
// Asking again and again, but not while nobody looks, and never twice at once.

export const TICK = 2000;
export const STALE_AFTER = 6000;

/**
 * Calls ask() every `every` ms while the tab is visible. tell(state, age) hears
 * of changes: 'live', 'stale' (the last good answer is older than staleAfter),
 * 'paused' (the tab is hidden). failed(err) hears of each failure.
 * Returns {now(): Promise, stop()}.
 */
export function poll(ask, { every = TICK, staleAfter = STALE_AFTER, tell = () => {}, failed = () => {} } = {}) {
  let timer = 0, running = null, stopped = false, good = 0, state = '';
  const say = () => {
    const age = good ? Date.now() - good : 0;
    const next = document.hidden ? 'paused' : good === 0 ? 'loading' : age > staleAfter ? 'stale' : 'live';
    if (next !== state || next === 'stale') { state = next; tell(state, age); }
  };
  const watch = setInterval(say, 1000);
  const once = async () => {
    try {
      await ask();
      good = Date.now();
    } catch (err) {
      failed(err);
    } finally {
      running = null;
      say();
      if (!stopped && !document.hidden) { clearTimeout(timer); timer = setTimeout(now, every); }
    }
  };
  function now() {
    clearTimeout(timer);
    running ??= once();
    return running;
  }
  const seen = () => {
    if (document.hidden) clearTimeout(timer);
    else if (!stopped) { if (good) good = Math.max(good, Date.now() - staleAfter); now(); } // one tick's grace after a pause
    say();
  };
  document.addEventListener('visibilitychange', seen);
  if (!document.hidden) now();
  return {
    now,
    stop() { stopped = true; clearTimeout(timer); clearInterval(watch); document.removeEventListener('visibilitychange', seen); },
  };
}
