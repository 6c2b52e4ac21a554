// SPDX-License-Identifier: Apache-2.0
// The admin API: one function, problems as errors, the token when it is asked for.
import { askToken } from './token.js';

const root = document.documentElement.dataset.base;
const TOKEN = 'sluice-admin-token';
const TIMEOUT = 10_000;

/** What the API refused, or why it could not be reached (status 0). */
export class ApiError extends Error {
  constructor(status, problem, requestId, etag) {
    super(problem.detail ?? 'The gateway gave no reason.');
    this.status = status;
    this.code = problem.code ?? '';
    this.title = status === 0 ? 'The gateway cannot be reached.' : undefined;
    this.requestId = problem.request_id ?? requestId ?? '';
    this.etag = problem.current_etag ?? etag ?? '';
    this.fields = problem.errors ?? [];
  }
}

export const token = {
  get() { try { return sessionStorage.getItem(TOKEN) ?? ''; } catch { return ''; } },
  set(v) { try { if (v) sessionStorage.setItem(TOKEN, v); else sessionStorage.removeItem(TOKEN); } catch { /* kept for no page but this */ } },
};

let asking = null; // one prompt, however many requests wait for it

async function send(method, path, { body, ifMatch, ifNoneMatch, signal, timeout = TIMEOUT } = {}) {
  const headers = { Accept: 'application/json' };
  const secret = token.get();
  if (secret) headers.Authorization = `Bearer ${secret}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (ifMatch) headers['If-Match'] = ifMatch;
  if (ifNoneMatch) headers['If-None-Match'] = ifNoneMatch;
  const limit = AbortSignal.timeout(timeout);
  try {
    const answer = await fetch(`${root}/admin/v1${path}`, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
      cache: 'no-store', credentials: 'omit', redirect: 'error', signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
    return { answer, text: await answer.text(), secret };
  } catch (e) {
    if (signal?.aborted) throw e;
    const slow = e.name === 'TimeoutError';
    throw new ApiError(0, { detail: slow ? `No answer came within ${timeout / 1000} seconds.` : 'The connection failed; the process may be stopped or restarting.' });
  }
}

/**
 * Calls /admin/v1 + path. Resolves to {body, etag, notModified}; throws
 * ApiError. A 401 asks for the token once and tries again.
 */
export async function api(method, path, options = {}) {
  for (let wrong = false; ; wrong = true) {
    const { answer, text, secret } = await send(method, path, options);
    if (answer.status === 401) {
      if (token.get() === secret) {
        asking ??= askToken(wrong || secret !== '').finally(() => { asking = null; });
        token.set(await asking);
      }
      continue;
    }
    const etag = answer.headers.get('ETag') ?? '';
    if (answer.status === 304) return { notModified: true, etag };
    let data = null;
    try { data = text ? JSON.parse(text) : null; } catch { /* not ours; told below */ }
    if (answer.ok && (data !== null || text === '')) return { body: data, etag };
    throw new ApiError(answer.status, data ?? { detail: `The answer (status ${answer.status}) is not the admin API's; something stands between.` }, answer.headers.get('X-Request-Id'), etag);
  }
}

export const get = (path, options) => api('GET', path, options);

const PAGE = 200;

/** The items of a list, page after page, at most `most`; .cut says that there are more. */
export async function list(path, most = 1000) {
  const items = [];
  for (let cursor = ''; ;) {
    const { body } = await get(`${path}?limit=${PAGE}${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
    items.push(...body.items);
    cursor = body.next_cursor ?? '';
    if (!cursor || items.length >= most) return Object.assign(items, { cut: cursor !== '' });
  }
}

/** Some figures still have the names of Go's fields: {InFlight: 1} → {in_flight: 1}. */
export function plain(object) {
  if (Array.isArray(object)) return object.map(plain);
  const out = {};
  for (const [k, v] of Object.entries(object ?? {})) {
    out[k.replace(/([a-z0-9])([A-Z])/g, '$1_$2').toLowerCase()] = v;
  }
  return out;
}
