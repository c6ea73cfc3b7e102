"""Asynchronous clients, many exchanges at once over shared connections."""

from __future__ import annotations

import asyncio

from cases import MODEL, SYSTEM, Context, case, chat_text

AT_ONCE = 24


@case()
def async_clients_together(c: Context) -> None:
    async def chat(client, n: int) -> None:
        answer = await client.chat.completions.create(
            model=MODEL, messages=chat_text(f"{SYSTEM} {n}"), max_tokens=4 + n % 3
        )
        c.saw("chat_completions", answer.usage)

    async def chat_stream(client, n: int) -> None:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=chat_text(f"stream {n}"),
            max_tokens=4 + n % 3,
            stream=True,
            stream_options={"include_usage": True},
        )
        usage = None
        async for chunk in stream:
            usage = chunk.usage or usage
        c.saw("chat_completions", usage)

    async def response(client, n: int) -> None:
        async with client.responses.stream(model=MODEL, input=f"response {n}", max_output_tokens=5) as stream:
            answer = await stream.get_final_response()
        c.saw("responses", answer.usage)

    async def message(client, n: int) -> None:
        async with client.messages.stream(
            model=MODEL, messages=chat_text(f"message {n}"), max_tokens=5
        ) as stream:
            answer = await stream.get_final_message()
        c.saw("messages", answer.usage)

    async def all_of_them() -> None:
        async with c.async_openai() as ours, c.async_anthropic() as theirs:
            jobs = []
            for n in range(AT_ONCE):
                kind = (chat, chat_stream, response, message)[n % 4]
                jobs.append(kind(theirs if kind is message else ours, n))
            await asyncio.gather(*jobs)

    asyncio.run(all_of_them())
    assert len(c.seen) == AT_ONCE
