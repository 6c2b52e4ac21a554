// The openai-node SDK against the gateway: SLUICE_URL is its base URL. Each case
// fails by throwing; the exit status is the number of failed cases.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const baseURL = process.env.SLUICE_URL;
const client = new OpenAI({ baseURL, apiKey: process.env.SLUICE_KEY, maxRetries: 0 });
const ask = (text, extra = {}) => ({ model: 'chat', messages: [{ role: 'user', content: text }], ...extra });
const failure = async (promise) => { try { await promise; } catch (e) { return e; } throw new Error('no error was raised'); };

const cases = {
  async chat() {
    const r = await client.chat.completions.create(ask('hello', { max_tokens: 5 }));
    assert.equal(r.usage.completion_tokens, 5);
    assert.equal(r.choices[0].finish_reason, 'length');
    assert.ok(r._request_id, 'x-request-id reaches _request_id');
  },
  async stream() {
    let text = '', finish = null, usage = null;
    for await (const c of await client.chat.completions.create(ask('hello', { stream: true, max_tokens: 6 }))) {
      text += c.choices[0]?.delta?.content ?? '';
      finish = c.choices[0]?.finish_reason ?? finish;
      usage ??= c.usage ?? null;
    }
    assert.equal(text.trim().split(' ').length, 6);
    assert.equal(finish, 'length');
    assert.equal(usage, null, 'usage that was not asked for stays away');
  },
  async stream_with_usage() {
    let usage = null;
    for await (const c of await client.chat.completions.create(ask('hello', { stream: true, max_tokens: 6, stream_options: { include_usage: true } }))) usage = c.usage ?? usage;
    assert.equal(usage.completion_tokens, 6);
  },
  async tools_stream() {
    let args = '', name = '';
    const tools = [{ type: 'function', function: { name: 'lookup', parameters: { type: 'object', properties: { q: { type: 'string' } } } } }];
    for await (const c of await client.chat.completions.create(ask('weather', { stream: true, tools }))) {
      for (const t of c.choices[0]?.delta?.tool_calls ?? []) { args += t.function?.arguments ?? ''; name ||= t.function?.name ?? ''; }
    }
    assert.equal(name, 'lookup');
    assert.deepEqual(JSON.parse(args), { q: 'weather' });
  },
  async n_two() {
    const seen = new Map();
    for await (const c of await client.chat.completions.create(ask('hello', { stream: true, n: 2, max_tokens: 3 }))) {
      for (const ch of c.choices) seen.set(ch.index, (seen.get(ch.index) ?? '') + (ch.delta.content ?? ''));
    }
    assert.deepEqual([...seen.keys()].sort(), [0, 1]);
  },
  async logprobs() {
    const r = await client.chat.completions.create(ask('hello', { logprobs: true }));
    assert.ok(r.choices[0].logprobs.content.length > 0);
  },
  async json_mode() {
    const r = await client.chat.completions.create(ask('hello', { response_format: { type: 'json_object' } }));
    assert.deepEqual(JSON.parse(r.choices[0].message.content), { ok: true });
  },
  async embeddings() {
    const r = await client.embeddings.create({ model: 'embed', input: ['a', 'b'] });
    assert.equal(r.data.length, 2);
    assert.equal(r.data[0].embedding.length, 3);
    assert.equal(r.data[0].embedding[0], 0.5);
  },
  async responses() {
    const r = await client.responses.create({ model: 'chat', input: 'hello' });
    assert.ok(r.output_text.length > 0);
  },
  async models() {
    const ids = []; for await (const m of client.models.list()) ids.push(m.id);
    assert.deepEqual(ids.sort(), ['chat', 'embed']);
    assert.equal((await client.models.retrieve('chat')).id, 'chat');
  },
  async error_classes() {
    for (const [status, cls] of [[400, OpenAI.BadRequestError], [404, OpenAI.NotFoundError], [422, OpenAI.UnprocessableEntityError], [429, OpenAI.RateLimitError], [500, OpenAI.InternalServerError], [503, OpenAI.InternalServerError]]) {
      const e = await failure(client.chat.completions.create(ask(`[[status:${status}]]`)));
      assert.ok(e instanceof cls, `${status} became ${e.constructor.name}`);
      assert.equal(e.status, status);
      assert.ok(e.message.length > 10);
    }
    const e = await failure(client.chat.completions.create({ ...ask('x'), model: 'nope' }));
    assert.ok(e instanceof OpenAI.NotFoundError);
    assert.equal(e.code, 'model_not_found');
    assert.ok(await failure(new OpenAI({ baseURL, apiKey: 'sk-wrong', maxRetries: 0 }).models.list()) instanceof OpenAI.AuthenticationError);
  },
  async error_in_first_event() {
    const e = await failure(client.chat.completions.create(ask('[[fault:error_event code:400]]', { stream: true })));
    assert.equal(e.status, 400);
  },
  async truncation() {
    const e = await failure((async () => { for await (const _ of await client.chat.completions.create(ask('[[fault:truncate@3]]', { stream: true }))); })());
    assert.ok(e instanceof OpenAI.APIError || /terminated|truncat/i.test(e.message), e.message);
  },
  async cancel() {
    const s = await client.chat.completions.create(ask('[[tokens:500 gap:20ms]]', { stream: true }));
    let n = 0;
    for await (const _ of s) if (++n === 3) { s.controller.abort(); break; }
    assert.equal(n, 3);
  },
  async retry_headers() {
    let calls = 0;
    const counting = new OpenAI({ baseURL, apiKey: process.env.SLUICE_KEY, maxRetries: 2, fetch: (u, o) => { calls++; return fetch(u, o); } });
    await failure(counting.chat.completions.create(ask('[[status:503]]')));
    assert.equal(calls, 1, 'x-should-retry: false is obeyed after the gateway has retried');
  },
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try { await run(); console.log(`ok ${name}`); } catch (e) { failed++; console.log(`FAIL ${name}: ${e.stack ?? e}`); }
}
process.exit(failed);
