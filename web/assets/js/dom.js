// SPDX-License-Identifier: Apache-2.0
// Elements from values. Text goes in as text; nothing here parses HTML.

const SVG = 'http://www.w3.org/2000/svg';

function fill(el, attrs, children) {
  for (const [name, value] of Object.entries(attrs ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) el.addEventListener(name.slice(2), value);
    else if (name === 'value' || name === 'checked') el[name] = value;
    else el.setAttribute(name, value === true ? '' : String(value));
  }
  put(el, children);
  return el;
}

function put(el, children) {
  for (const c of children.flat(Infinity)) {
    if (c === undefined || c === null || c === false || c === '') continue;
    el.append(c instanceof Node ? c : document.createTextNode(String(c)));
  }
}

/** h('td', {class: 'num'}, 'text', node, [more]): an element. */
export function h(tag, attrs, ...children) { return fill(document.createElement(tag), attrs, children); }

/** The same for SVG. */
export function svg(tag, attrs, ...children) { return fill(document.createElementNS(SVG, tag), attrs, children); }

/** Replaces what is in el. */
export function fillIn(el, ...children) {
  el.replaceChildren();
  put(el, children);
  return el;
}

function sync(old, now) {
  if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) { old.replaceWith(now); return; }
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== now.data) old.data = now.data; return; }
  for (const { name } of [...old.attributes]) if (!now.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of [...now.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  sameChildren(old, [...now.childNodes]);
}

function sameChildren(el, now) {
  const old = [...el.childNodes];
  now.forEach((n, i) => (old[i] ? sync(old[i], n) : el.append(n)));
  old.slice(now.length).forEach((n) => n.remove());
}

/**
 * Makes el hold the children by changing what differs, so that focus, scrolling
 * and selections survive a tick. Only for what has no listeners of its own:
 * an element that stays keeps its old ones.
 */
export function refresh(el, ...children) {
  const box = document.createDocumentFragment();
  put(box, children);
  sameChildren(el, [...box.childNodes]);
  return el;
}

/** Sets text only where it differs, so that selections and readers stay quiet. */
export function setText(el, text) { if (el && el.textContent !== text) el.textContent = text; }

export const byId = (id) => document.getElementById(id);

const shapes = {
  running: ['circle', { cx: 8, cy: 8, r: 4.5, fill: 'currentColor' }],
  paused: ['path', { d: 'M5 3.5v9M11 3.5v9', stroke: 'currentColor', 'stroke-width': 2.6, 'stroke-linecap': 'round' }],
  back: ['path', { d: 'M6.5 3 3 6.5 6.5 10M3.5 6.5H10a3.2 3.2 0 0 1 0 6.5H7', fill: 'none', stroke: 'currentColor', 'stroke-width': 1.8, 'stroke-linecap': 'round', 'stroke-linejoin': 'round' }],
  check: ['path', { d: 'm3 8.5 3.2 3.2L13 4.8', fill: 'none', stroke: 'currentColor', 'stroke-width': 2, 'stroke-linecap': 'round', 'stroke-linejoin': 'round' }],
  cross: ['path', { d: 'm4 4 8 8M12 4l-8 8', stroke: 'currentColor', 'stroke-width': 2, 'stroke-linecap': 'round' }],
  warn: ['path', { d: 'M8 2.2 14.4 13.5H1.6ZM8 6.3v3.4M8 11.6v.1', fill: 'none', stroke: 'currentColor', 'stroke-width': 1.5, 'stroke-linejoin': 'round', 'stroke-linecap': 'round' }],
  draft: ['circle', { cx: 8, cy: 8, r: 4.5, fill: 'none', stroke: 'currentColor', 'stroke-width': 1.8, 'stroke-dasharray': '2.2 2' }],
  up: ['path', { d: 'M8 13V3.5M4 7l4-4 4 4', fill: 'none', stroke: 'currentColor', 'stroke-width': 1.8, 'stroke-linecap': 'round', 'stroke-linejoin': 'round' }],
  box: ['path', { d: 'M2.5 4.5h11v9h-11zM2.5 4.5v-2h11v2M6 7.5h4', fill: 'none', stroke: 'currentColor', 'stroke-width': 1.5, 'stroke-linejoin': 'round' }],
};

/** A decorative icon; the word beside it says the same. */
export function icon(name) {
  const [tag, attrs] = shapes[name] ?? shapes.draft;
  return svg('svg', { class: 'icon', viewBox: '0 0 16 16', width: 14, height: 14, 'aria-hidden': 'true', focusable: 'false' }, svg(tag, attrs));
}

export const chip = (kind, iconName, word) => h('span', { class: `chip ${kind}` }, icon(iconName), word);

/** A button; one that cannot be used stays reachable and says why when tried. */
export function actionButton(text, { run, why, tell, cls, label }) {
  return h('button', { type: 'button', class: cls, 'aria-label': label, 'aria-disabled': why ? 'true' : undefined, 'aria-description': why ? `Not possible: ${why}` : undefined,
    title: why ? `Not possible: ${why}` : undefined, onclick: () => (why ? tell(`Not possible: ${why}.`) : run()) }, text);
}

/** A table in a region that scrolls by itself and by keyboard. */
export function tableRegion(label, head, rows, cls) {
  return h('div', { class: 'scroll', role: 'region', 'aria-label': label, tabindex: '0' },
    h('table', { class: cls }, h('thead', null, h('tr', null, head.map((c) => h('th', { scope: 'col', class: c.num ? 'num' : undefined, title: c.title }, c.text ?? c)))),
      h('tbody', null, rows)));
}

/** The four states of a list beside data: empty, and a failure with a way on. */
export function emptyState(title, text, curl, action) {
  return h('div', { class: 'empty' }, h('h2', null, title), h('p', null, text), action,
    curl && h('div', { class: 'scroll', role: 'region', 'aria-label': 'Example command', tabindex: '0' }, h('pre', null, curl)));
}

export function errorState(err, retry) {
  return h('div', { class: 'notice bad', role: 'alert' },
    h('p', null, h('strong', null, icon('warn'), ' ', err.title ?? 'This could not be loaded. '), ' ', err.message),
    err.requestId && h('p', { class: 'hint' }, 'Request id ', h('code', null, err.requestId)),
    retry && h('button', { type: 'button', onclick: retry }, 'Try again'));
}
