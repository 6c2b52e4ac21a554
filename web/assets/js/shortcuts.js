// SPDX-License-Identifier: Apache-2.0
// Keys: single letters and "g x". Off while typing, in dialogs, with modifiers,
// and altogether where the reader switched them off (WCAG 2.1.4).
import { h } from './dom.js';
import { dialogOpen, inform } from './dialog.js';

const OFF = 'sluice-shortcuts-off';
const known = new Map();
let pending = '', timer = 0;

const stored = () => { try { return localStorage.getItem(OFF) === '1'; } catch { return false; } };
let off = stored();

/** Registers keys ("r", "g e") with what they do, in words. */
export function shortcut(keys, text, run) { known.set(keys, { text, run }); }

const typing = (el) => el instanceof HTMLElement && (el.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(el.tagName));

document.addEventListener('keydown', (e) => {
  if (off || e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey || e.repeat || typing(e.target) || dialogOpen()) return;
  const key = e.key.length === 1 ? e.key.toLowerCase() : '';
  if (!key) return;
  const both = pending ? `${pending} ${key}` : key;
  clearTimeout(timer);
  pending = '';
  const hit = known.get(both);
  if (hit) {
    e.preventDefault();
    hit.run();
  } else if ([...known.keys()].some((k) => k.startsWith(`${key} `))) {
    pending = key;
    timer = setTimeout(() => { pending = ''; }, 1500);
  }
});

/** The help dialog: all keys of this page and the switch that turns them off. */
export function showHelp() {
  const rows = [...known].map(([keys, { text }]) => h('div', null,
    h('dt', null, keys.split(' ').map((k, i) => [i > 0 && ' then ', h('kbd', null, k.length === 1 && k >= 'a' && k <= 'z' && !keys.includes(' ') ? k.toUpperCase() : k)])), h('dd', null, text)));
  const box = h('input', { type: 'checkbox', id: 'shortcuts-off', checked: off, onchange: (e) => {
    off = e.target.checked;
    try { localStorage.setItem(OFF, off ? '1' : '0'); } catch { /* holds for this page */ }
  } });
  inform('Keyboard', [h('dl', { class: 'keys' }, rows), h('label', { class: 'check' }, box, ' Switch single-key shortcuts off')]);
}
