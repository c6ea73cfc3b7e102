"""Many exchanges of both SDKs at once, in groups that an engine's own counters are compared with.

usage: load.py --base-url URL --group NAME --count N --out FILE

The groups, each a tenant of its own:
  one    every API, streamed and whole, usage asked or not, tools offered or not: one prompt, one sequence
  many   `n` of 2: one prompt, two sequences
  batch  two prompts, a sequence for each
  left   streams that the client closes after the last token and before the usage
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from anthropic_cases import TOOL as ANTHROPIC_TOOL
from cases import MODEL, SYSTEM, Context, chat_text, count
from openai_cases import TOOL

#: Engines here run 8 sequences at once, on a CPU.
AT_ONCE = 6
ASKED = {"stream_options": {"include_usage": True}}


class Load:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.ours = context.async_openai()
        self.theirs = context.async_anthropic()

    def messages(self, turn: int) -> list[dict[str, str]]:
        """One of a few long beginnings, so that the prefix cache has something to do; then something of its own."""
        return [{"role": "system", "content": f"Weir {turn % 5}. {SYSTEM}"}, *chat_text(f"Question {turn}: how much?")]

    async def chat(self, turn: int, **more) -> dict:
        answer = await self.ours.chat.completions.create(
            model=MODEL, messages=self.messages(turn), max_tokens=4 + turn % 17, **more
        )
        return count(answer.usage)

    async def chat_stream(self, turn: int, **more) -> dict:
        stream = await self.ours.chat.completions.create(
            model=MODEL, messages=self.messages(turn), max_tokens=4 + turn % 17, stream=True, **more
        )
        usage = None
        async for chunk in stream:
            usage = chunk.usage or usage
        return count(usage)

    async def completion(self, turn: int, prompt=None, **more) -> dict:
        answer = await self.ours.completions.create(
            model=MODEL, prompt=prompt or f"{SYSTEM} {turn % 7}", max_tokens=4 + turn % 13, **more
        )
        return count(answer.usage)

    async def completion_stream(self, turn: int, prompt=None, **more) -> dict:
        stream = await self.ours.completions.create(
            model=MODEL, prompt=prompt or f"{SYSTEM} {turn % 7}", max_tokens=4 + turn % 13, stream=True, **more
        )
        usage = None
        async for chunk in stream:
            usage = chunk.usage or usage
        return count(usage)

    async def response(self, turn: int) -> dict:
        answer = await self.ours.responses.create(
            model=MODEL, input=f"Question {turn}", instructions=SYSTEM, max_output_tokens=4 + turn % 11
        )
        return count(answer.usage)

    async def response_stream(self, turn: int) -> dict:
        stream = await self.ours.responses.create(
            model=MODEL, input=f"Question {turn % 9}", instructions=SYSTEM, max_output_tokens=4 + turn % 11, stream=True
        )
        usage = None
        async for event in stream:
            if event.type in ("response.completed", "response.incomplete"):
                usage = event.response.usage
        return count(usage)

    async def message(self, turn: int, **more) -> dict:
        answer = await self.theirs.messages.create(
            model=MODEL, messages=chat_text(f"Question {turn % 9}"), system=SYSTEM, max_tokens=4 + turn % 11, **more
        )
        return count(answer.usage)

    async def message_stream(self, turn: int, **more) -> dict:
        async with self.theirs.messages.stream(
            model=MODEL, messages=chat_text(f"Question {turn}"), system=SYSTEM, max_tokens=4 + turn % 11, **more
        ) as stream:
            answer = await stream.get_final_message()
        return count(answer.usage)

    async def left_chat(self, turn: int, **more) -> dict:
        """Every token is out once each choice has its finish reason; usage and [DONE] are still to come."""
        stream = await self.ours.chat.completions.create(
            model=MODEL, messages=self.messages(turn), max_tokens=4 + turn % 9, stream=True, **more
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].finish_reason:
                break
        await stream.close()
        return {}

    async def left_completion(self, turn: int) -> dict:
        stream = await self.ours.completions.create(
            model=MODEL, prompt=f"{SYSTEM} {turn % 7}", max_tokens=4 + turn % 9, stream=True
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].finish_reason:
                break
        await stream.close()
        return {}

    def plan(self, group: str) -> list:
        tools = {"tools": [TOOL], "tool_choice": "auto"}
        theirs = {"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "auto"}}
        two = ["The weir and the mill", f"The gauge. {SYSTEM}"]
        if group == "one":
            return [
                lambda turn: self.chat(turn),
                lambda turn: self.chat_stream(turn),
                lambda turn: self.chat_stream(turn, **ASKED),
                lambda turn: self.message_stream(turn),
                lambda turn: self.message(turn),
                lambda turn: self.response(turn),
                lambda turn: self.response_stream(turn),
                lambda turn: self.completion(turn),
                lambda turn: self.completion_stream(turn),
                lambda turn: self.completion_stream(turn, **ASKED),
                lambda turn: self.chat(turn, **tools),
                lambda turn: self.chat_stream(turn, **tools),
                lambda turn: self.message_stream(turn, **theirs),
                lambda turn: self.chat_stream(turn, stop=["a"]),
                lambda turn: self.chat(turn, logprobs=True, top_logprobs=1),
            ]
        if group == "many":
            return [
                lambda turn: self.chat(turn, n=2),
                lambda turn: self.chat_stream(turn, n=2),
                lambda turn: self.chat_stream(turn, n=2, **ASKED),
            ]
        if group == "batch":
            return [
                lambda turn: self.completion(turn, prompt=two),
                lambda turn: self.completion_stream(turn, prompt=two),
                lambda turn: self.completion_stream(turn, prompt=two, **ASKED),
            ]
        if group == "left":
            return [lambda turn: self.left_chat(turn), lambda turn: self.left_chat(turn, **ASKED), self.left_completion]
        raise SystemExit(f"no group {group!r}")


async def run(context: Context, group: str, number: int) -> list[dict]:
    load = Load(context)
    kinds = load.plan(group)
    seen: list[dict] = []
    turns = iter(range(number))

    async def worker() -> None:
        for turn in turns:
            seen.append(await kinds[turn % len(kinds)](turn))

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return seen


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    context = Context(base_url=arguments.base_url, tenant=arguments.group, engine="vllm")
    seen = asyncio.run(run(context, arguments.group, arguments.count))
    with open(arguments.out, "w", encoding="utf-8") as out:
        json.dump(seen, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
