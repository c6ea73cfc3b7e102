"""Exchanges of both SDKs without a pause, until a file appears; one JSON line for each, in the order of their ends.

usage: restless.py --base-url URL --until FILE --out FILE

No retries: what the gateway lets through is seen. `started` says whether the answer had begun when it failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from typing import TextIO

import anthropic
import openai

from cases import MODEL, SYSTEM, Context, chat_text

AT_ONCE = 6
LENGTH = 120


class Restless:
    def __init__(self, context: Context, until: str, out: TextIO) -> None:
        self.ours = context.async_openai()
        self.theirs = context.async_anthropic()
        self.until = until
        self.out = out
        self.number = 0

    async def chat_stream(self, number: int, told: dict) -> None:
        stream = await self.ours.chat.completions.create(
            model=MODEL, messages=chat_text(f"{SYSTEM} {number}"), max_tokens=LENGTH, stream=True
        )
        told["started"] = True
        told["request_id"] = stream.response.headers.get("x-request-id")
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].finish_reason:
                told["finish"] = chunk.choices[0].finish_reason

    async def chat(self, number: int, told: dict) -> None:
        answer = await self.ours.chat.completions.create(
            model=MODEL, messages=chat_text(f"{SYSTEM} {number}"), max_tokens=LENGTH // 4
        )
        told["finish"] = answer.choices[0].finish_reason
        told["request_id"] = answer._request_id

    async def message_stream(self, number: int, told: dict) -> None:
        async with self.theirs.messages.stream(
            model=MODEL, messages=chat_text(f"{SYSTEM} {number}"), max_tokens=LENGTH
        ) as stream:
            told["started"] = True
            told["request_id"] = stream.response.headers.get("x-request-id")
            async for _ in stream:
                pass
            told["finish"] = (await stream.get_final_message()).stop_reason

    async def response_stream(self, number: int, told: dict) -> None:
        stream = await self.ours.responses.create(
            model=MODEL, input=f"{SYSTEM} {number}", max_output_tokens=LENGTH, stream=True
        )
        told["started"] = True
        told["request_id"] = stream.response.headers.get("x-request-id")
        async for event in stream:
            told["finish"] = event.type

    async def worker(self) -> None:
        kinds = (self.chat_stream, self.message_stream, self.chat, self.response_stream, self.chat_stream)
        while not os.path.exists(self.until):
            self.number += 1
            number = self.number
            kind = kinds[number % len(kinds)]
            told = {"number": number, "kind": kind.__name__, "from_ms": now_ms(), "started": False, "error": None}
            try:
                await kind(number, told)
            except (openai.APIError, anthropic.APIError) as error:
                told["error"] = f"{type(error).__name__}: {error}"
                response = getattr(error, "response", None)
                if told.get("request_id") is None and response is not None:
                    told["request_id"] = response.headers.get("x-request-id")
            except Exception as error:  # noqa: BLE001 - a broken connection in mid-stream is no SDK exception
                told["error"] = f"{type(error).__name__}: {error}"
            told["to_ms"] = now_ms()
            self.out.write(json.dumps(told) + "\n")
            self.out.flush()


def now_ms() -> int:
    return int(time.time() * 1000)


async def run(context: Context, until: str, out: TextIO) -> None:
    restless = Restless(context, until, out)
    await asyncio.gather(*(restless.worker() for _ in range(AT_ONCE)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--until", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    context = Context(base_url=arguments.base_url, tenant="restless", engine="vllm")
    with open(arguments.out, "w", encoding="utf-8") as out:
        asyncio.run(run(context, arguments.until, out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
