// SPDX-License-Identifier: Apache-2.0
// Modal dialogs on <dialog>: the browser keeps the focus inside and gives it back.
import { h, icon } from './dom.js';

let serial = 0;

export const dialogOpen = () => document.querySelector('dialog[open]') !== null;

/**
 * A dialog with content and one action. The focus starts on Cancel, so that
 * Enter by habit changes nothing. run() does the work; its failure is shown
 * here and the dialog stays. Resolves to what run() gave, or undefined.
 */
export function confirmAction({ title, content, action, danger = false, run, focus }) {
  return new Promise((resolve) => {
    const id = `dialog-${++serial}`;
    let result;
    const problem = h('div', { role: 'alert' });
    const cancel = h('button', { type: 'button', 'data-cancel': true, onclick: () => dialog.close() }, 'Cancel');
    const go = h('button', { type: 'submit', class: danger ? 'danger' : 'primary', 'data-confirm': true }, action);
    const form = h('form', { method: 'dialog', onsubmit: async (e) => {
      e.preventDefault();
      if (go.getAttribute('aria-disabled') === 'true') return;
      problem.replaceChildren();
      go.setAttribute('aria-disabled', 'true');
      go.textContent = 'Working…';
      try {
        result = (await run(new FormData(form))) ?? true;
        dialog.close();
      } catch (err) {
        problem.replaceChildren(h('p', { class: 'notice bad' }, icon('warn'), ' ', err.message, err.requestId ? ` (request ${err.requestId})` : ''));
        go.removeAttribute('aria-disabled');
        go.textContent = action;
      }
    } }, h('h2', { id: `${id}-title` }, title), h('div', { id: `${id}-text`, class: 'dialog-text' }, content), problem,
    h('div', { class: 'dialog-actions' }, cancel, go));
    const dialog = h('dialog', { class: 'dialog', 'aria-labelledby': `${id}-title`, 'aria-describedby': `${id}-text` }, form);
    dialog.addEventListener('close', () => { dialog.remove(); resolve(result); });
    document.body.append(dialog);
    dialog.showModal();
    (focus ? dialog.querySelector(focus) : cancel).focus();
  });
}

/** A dialog that only tells. */
export function inform(title, content, { close = 'Close' } = {}) {
  return new Promise((resolve) => {
    const id = `dialog-${++serial}`;
    const button = h('button', { type: 'button', onclick: () => dialog.close() }, close);
    const dialog = h('dialog', { class: 'dialog', 'aria-labelledby': `${id}-title` },
      h('h2', { id: `${id}-title` }, title), h('div', { class: 'dialog-text' }, content), h('div', { class: 'dialog-actions' }, button));
    dialog.addEventListener('close', () => { dialog.remove(); resolve(); });
    document.body.append(dialog);
    dialog.showModal();
    button.focus();
  });
}

const toasts = () => document.getElementById('toasts');

/** A short word that an action was done; announced politely. */
export function toast(text) {
  const el = h('p', { class: 'toast' }, icon('check'), ' ', text);
  toasts().append(el);
  setTimeout(() => el.remove(), 6000);
}

/** A labelled field for why something is done; goes into the audit log. */
export function reasonField(required = false) {
  return h('label', { class: 'block' }, required ? 'Reason (required)' : 'Reason (optional, kept in the audit log)',
    h('input', { name: 'reason', maxlength: '1000', autocomplete: 'off', required }));
}

/** Copies text; false where the browser does not let us. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
