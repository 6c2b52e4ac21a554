// SPDX-License-Identifier: Apache-2.0
// The prompt for the admin token. It is kept for the tab's session, nowhere else.
import { h } from './dom.js';

/** Resolves to what was entered. It cannot be dismissed: without it there is nothing to show. */
export function askToken(wrong) {
  return new Promise((resolve) => {
    const input = h('input', { type: 'password', id: 'token', required: true, autocomplete: 'current-password', spellcheck: 'false', 'aria-describedby': 'token-hint' });
    const dialog = h('dialog', { class: 'dialog', 'aria-labelledby': 'token-title' },
      h('form', { method: 'dialog', onsubmit: (e) => {
        e.preventDefault();
        const value = input.value.trim();
        if (!value) return;
        dialog.remove();
        resolve(value);
      } },
      h('h2', { id: 'token-title' }, 'Admin token'),
      wrong && h('p', { class: 'notice bad', role: 'alert' }, 'The gateway refused that token.'),
      h('p', { id: 'token-hint' }, 'This gateway asks for its admin token (the setting ', h('code', null, 'admin.token'), '). It stays in this tab until you close it.'),
      h('label', { for: 'token' }, 'Token'), input,
      h('div', { class: 'dialog-actions' }, h('button', { type: 'submit', class: 'primary' }, 'Continue'))));
    dialog.addEventListener('cancel', (e) => e.preventDefault());
    dialog.addEventListener('close', () => { if (dialog.isConnected) dialog.showModal(); }); // a second Escape closes it all the same
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}
