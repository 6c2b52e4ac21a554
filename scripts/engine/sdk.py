"""openai-python against the gateway in front of real engines.

SLUICE_URL is the gateway's base URL, USERS how many users ask. Each asks once
whole and once streamed. The last line of the output is JSON: for each variant
the requests and the tokens that the SDK was told.
"""

import json
import os

from openai import OpenAI

totals = {}


def add(headers, usage):
    t = totals.setdefault(headers["x-sluice-variant"], {"requests": 0, "input": 0, "output": 0})
    t["requests"] += 1
    t["input"] += usage.prompt_tokens
    t["output"] += usage.completion_tokens


client = OpenAI(base_url=os.environ["SLUICE_URL"], api_key="none", max_retries=0)
for n in range(int(os.environ["USERS"])):
    ask = {"model": "chat", "messages": [{"role": "user", "content": f"Say something to user {n} in Python."}],
           "max_tokens": 6, "temperature": 0, "seed": 1, "extra_headers": {"X-User-Id": f"user-{n}"}}
    whole = client.chat.completions.with_raw_response.create(**ask)
    answer = whole.parse()
    assert answer.choices[0].finish_reason in ("stop", "length"), answer
    add(whole.headers, answer.usage)

    raw = client.chat.completions.with_raw_response.create(**ask, stream=True, stream_options={"include_usage": True})
    usage, finish = None, None
    for chunk in raw.parse():
        usage = chunk.usage or usage
        if chunk.choices:
            finish = chunk.choices[0].finish_reason or finish
    assert finish and usage, (finish, usage)
    assert raw.headers["x-sluice-variant"] == whole.headers["x-sluice-variant"], "a user changed its variant"
    add(raw.headers, usage)

print(json.dumps(totals))
