// Streams an answer through Sluice and says which variant it came from.
//
//   cd examples/node && npm install
//   node chat.mjs "What is a canary release?"
//
// SLUICE_URL is the gateway (http://127.0.0.1:8080/v1), SLUICE_KEY its API key.
import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: process.env.SLUICE_URL ?? 'http://127.0.0.1:8080/v1',
  apiKey: process.env.SLUICE_KEY ?? 'none',
});
const question = process.argv.slice(2).join(' ') || 'What is a canary release?';

async function main() {
  let stream, response;
  try {
    ({ data: stream, response } = await client.chat.completions
      .create({
        model: 'chat',
        messages: [{ role: 'user', content: question }],
        user: 'user-42', // keeps this user on one variant
        stream: true,
      })
      .withResponse());
  } catch (e) {
    if (!(e instanceof OpenAI.APIError)) throw e;
    console.error(`refused: ${e.status} ${e.code}: ${e.message}`);
    return 1;
  }
  const variant = response.headers.get('x-sluice-variant') ?? 'none';
  console.error(`variant ${variant}, request ${response.headers.get('x-request-id')}`);

  let finished = false;
  try {
    for await (const chunk of stream) {
      for (const choice of chunk.choices) {
        process.stdout.write(choice.delta.content ?? '');
        finished ||= choice.finish_reason != null;
      }
    }
  } catch (e) {
    // The status was 200 already: a stream that breaks says so in-band.
    console.error(`\n[the answer was cut off: ${e.message}]`);
    return 1;
  }
  process.stdout.write('\n');
  if (!finished) {
    console.error('[the answer ended without a finish reason]');
    return 1;
  }
  return 0;
}

process.exitCode = await main();
