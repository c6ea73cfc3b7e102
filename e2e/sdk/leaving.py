"""Clients that leave: timeouts, closed streams, cancelled tasks. Each leaves a record that says so."""

from __future__ import annotations

import asyncio

import anthropic
import httpx2
import openai

from cases import MODEL, QUESTION, Context, case, expect

#: A token every so often, so that there is a middle to leave in.
SLOW = {"x-engine-interval-ms": "50"}
LONG = 400


def _left(c: Context, api: str, at_least: int) -> None:
    c.saw(api, end="client_abort", at_least=at_least)


@case("small", "sim", group="leaving")
def timeout_before_the_answer(c: Context) -> None:
    client = c.openai(timeout=0.5, headers=SLOW)
    expect(
        openai.APITimeoutError,
        lambda: client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=LONG),
    )
    _left(c, "chat_completions", 0)
    client = c.anthropic(timeout=0.5, headers=SLOW)
    expect(
        anthropic.APITimeoutError, lambda: client.messages.create(model=MODEL, messages=QUESTION, max_tokens=LONG)
    )
    _left(c, "messages", 0)


@case("small", group="leaving")
def timeout_in_a_stream(c: Context) -> None:
    """The engine falls silent; the SDK gives up between two events."""
    client = c.openai(timeout=0.5, headers={"x-engine-stall-after": "5"})
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=LONG, stream=True)
    seen = 0
    try:
        for _ in stream:
            seen += 1
        raise AssertionError("the stream ended")
    except (openai.APITimeoutError, httpx2.TimeoutException):
        pass
    assert seen == 5, seen
    _left(c, "chat_completions", 4)


@case(group="leaving")
def stream_closed_half_way(c: Context) -> None:
    more = {"extra_headers": SLOW} if c.engine != "vllm" else {}
    length = LONG if c.engine != "vllm" else 1500
    client = c.openai()
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=length, stream=True, **more)
    for number, _ in enumerate(stream):
        if number == 5:
            break
    stream.close()
    _left(c, "chat_completions", 5)
    with client.responses.create(
        model=MODEL, input="hello", max_output_tokens=length, stream=True, **more
    ) as events:
        deltas = 0
        for event in events:
            deltas += event.type == "response.output_text.delta"
            if deltas == 4:
                break
    _left(c, "responses", 0)
    with c.anthropic().messages.stream(model=MODEL, messages=QUESTION, max_tokens=length, **more) as events:
        deltas = 0
        for event in events:
            deltas += event.type == "content_block_delta"
            if deltas == 4:
                break
    _left(c, "messages", 0)


@case("small", "sim", group="leaving")
def task_cancelled(c: Context) -> None:
    async def read(seen: asyncio.Event) -> None:
        async with c.async_openai(headers=SLOW) as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=QUESTION, max_tokens=LONG, stream=True
            )
            number = 0
            async for _ in stream:
                number += 1
                if number == 5:
                    seen.set()

    async def leave() -> None:
        seen = asyncio.Event()
        task = asyncio.create_task(read(seen))
        await seen.wait()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return
        raise AssertionError("not cancelled")

    asyncio.run(leave())
    _left(c, "chat_completions", 4)
