"""Stream an answer through Sluice and say which variant it came from.

    pip install openai
    python examples/python/chat.py "What is a canary release?"

SLUICE_URL is the gateway (http://127.0.0.1:8080/v1), SLUICE_KEY its API key.
"""

import os
import sys

import openai


def main(question: str, user: str = "user-42") -> int:
    client = openai.OpenAI(
        base_url=os.environ.get("SLUICE_URL", "http://127.0.0.1:8080/v1"),
        api_key=os.environ.get("SLUICE_KEY", "none"),
    )
    try:
        # The raw response has the headers; parse() gives the usual stream.
        raw = client.chat.completions.with_raw_response.create(
            model="chat",
            messages=[{"role": "user", "content": question}],
            user=user,  # keeps this user on one variant
            stream=True,
        )
    except openai.APIStatusError as e:
        print(f"refused: {e.status_code} {e.code}: {e.message}", file=sys.stderr)
        print(f"request {e.response.headers.get('x-request-id')}", file=sys.stderr)
        return 1

    variant = raw.headers.get("x-sluice-variant", "none")
    print(f"variant {variant}, request {raw.headers.get('x-request-id')}", file=sys.stderr)

    finished = False
    try:
        for chunk in raw.parse():
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
                finished = finished or choice.finish_reason is not None
    except Exception as e:
        # The status was 200 already. A stream that breaks says so in-band, which
        # the SDK raises as openai.APIError; a cut line raises the HTTP library's own.
        print(f"\n[the answer was cut off: {e}]", file=sys.stderr)
        return 1
    print()
    if not finished:
        print("[the answer ended without a finish reason]", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:]) or "What is a canary release?"))
