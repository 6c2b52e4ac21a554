"""The openai-python SDK against the gateway: SLUICE_URL is its base URL.

Each case fails by raising; the exit status is the number of failed cases.
"""

import json
import os
import sys
import traceback

import openai
from openai import OpenAI

URL, KEY = os.environ["SLUICE_URL"], os.environ.get("SLUICE_KEY", "none")
client = OpenAI(base_url=URL, api_key=KEY, max_retries=0)


def ask(text, **extra):
    return {"model": "chat", "messages": [{"role": "user", "content": text}], **extra}


def fails(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError(f"{kind.__name__} was not raised")


def chat():
    r = client.chat.completions.create(**ask("hello", max_tokens=5))
    assert r.usage.completion_tokens == 5 and r.choices[0].finish_reason == "length"
    assert r._request_id


def unknown_fields_survive():
    r = client.chat.completions.create(**ask("hello"), extra_body={"chat_template_kwargs": {"x": 1}})
    assert r.choices


def stream():
    text, finish, usage = "", None, None
    for c in client.chat.completions.create(**ask("hello", max_tokens=6), stream=True):
        usage = usage or c.usage
        if c.choices:
            text += c.choices[0].delta.content or ""
            finish = c.choices[0].finish_reason or finish
    assert len(text.split()) == 6 and finish == "length" and usage is None


def stream_with_usage():
    usage = None
    for c in client.chat.completions.create(**ask("hello", max_tokens=6), stream=True, stream_options={"include_usage": True}):
        usage = c.usage or usage
    assert usage.completion_tokens == 6


def tools():
    spec = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}]
    r = client.chat.completions.create(**ask("weather", tools=spec))
    call = r.choices[0].message.tool_calls[0]
    assert call.function.name == "lookup" and json.loads(call.function.arguments) == {"q": "weather"}
    args = ""
    for c in client.chat.completions.create(**ask("weather", tools=spec), stream=True):
        for t in (c.choices[0].delta.tool_calls or []) if c.choices else []:
            args += t.function.arguments or ""
    assert json.loads(args) == {"q": "weather"}


def n_two():
    r = client.chat.completions.create(**ask("hello", n=2, max_tokens=3))
    assert [c.index for c in r.choices] == [0, 1]
    seen = set()
    for c in client.chat.completions.create(**ask("hello", n=2), stream=True):
        seen |= {ch.index for ch in c.choices}
    assert seen == {0, 1}


def logprobs():
    r = client.chat.completions.create(**ask("hello", logprobs=True))
    assert r.choices[0].logprobs.content


def json_mode():
    r = client.chat.completions.create(**ask("hello", response_format={"type": "json_object"}))
    assert json.loads(r.choices[0].message.content) == {"ok": True}


def completions():
    r = client.completions.create(model="chat", prompt="hello", max_tokens=4)
    assert r.usage.completion_tokens == 4
    text = "".join(c.choices[0].text for c in client.completions.create(model="chat", prompt="x", stream=True) if c.choices)
    assert text


def embeddings():
    r = client.embeddings.create(model="embed", input=["a", "b"])
    assert len(r.data) == 2 and r.data[0].embedding == [0.5, -0.25, 0.125]
    r = client.embeddings.create(model="embed", input="a", encoding_format="float")
    assert r.data[0].embedding == [0.5, -0.25, 0.125]


def responses():
    assert client.responses.create(model="chat", input="hello").output_text
    kinds = [e.type for e in client.responses.create(model="chat", input="hello", stream=True)]
    assert kinds[-1] == "response.completed"


def models():
    assert sorted(m.id for m in client.models.list()) == ["chat", "embed"]
    assert client.models.retrieve("chat").id == "chat"
    e = fails(openai.NotFoundError, lambda: client.models.retrieve("nope"))
    assert e.code == "model_not_found"


def error_classes():
    for status, kind in [
        (400, openai.BadRequestError), (404, openai.NotFoundError), (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError), (500, openai.InternalServerError), (503, openai.InternalServerError),
    ]:
        e = fails(kind, lambda: client.chat.completions.create(**ask(f"[[status:{status}]]")))
        assert e.status_code == status and e.body and e.body.get("message"), (status, e.body)
    e = fails(openai.NotFoundError, lambda: client.chat.completions.create(**{**ask("x"), "model": "nope"}))
    assert e.code == "model_not_found" and e.param == "model"
    fails(openai.AuthenticationError, lambda: OpenAI(base_url=URL, api_key="sk-wrong", max_retries=0).models.list())
    e = fails(openai.BadRequestError, lambda: client.chat.completions.create(**ask("x"), extra_body={"n": "two"}))
    assert e.param == "n"


def error_in_first_event():
    e = fails(openai.BadRequestError, lambda: client.chat.completions.create(**ask("[[fault:error_event code:400]]"), stream=True))
    assert e.status_code == 400


def truncation():
    got = []

    def read():
        for c in client.chat.completions.create(**ask("[[fault:truncate@3]]"), stream=True):
            got.append(c)

    e = fails(openai.APIError, read)
    assert got and e.code == "upstream_truncated", (len(got), e)


def cancel():
    n = 0
    with client.chat.completions.create(**ask("[[tokens:500 gap:20ms]]"), stream=True) as s:
        for _ in s:
            n += 1
            if n == 3:
                break
    assert n == 3


def retry_headers():
    raw = client.chat.completions.with_raw_response
    e = fails(openai.InternalServerError, lambda: raw.create(**ask("[[status:503]]")))
    assert e.response.headers["x-should-retry"] == "false"
    r = raw.create(**ask("hello"))
    assert r.headers["x-request-id"] and r.headers["x-sluice-model"] == "chat"


failed = 0
for case in [chat, unknown_fields_survive, stream, stream_with_usage, tools, n_two, logprobs, json_mode, completions, embeddings,
             responses, models, error_classes, error_in_first_event, truncation, cancel, retry_headers]:
    try:
        case()
        print("ok", case.__name__)
    except Exception:
        failed += 1
        print("FAIL", case.__name__)
        traceback.print_exc(file=sys.stdout)
sys.exit(failed)
