"""Anthropic's SDK: messages whole and streamed, tools, counting, models."""

from __future__ import annotations

from cases import MODEL, QUESTION, READING, SYSTEM, Context, case

TOOL = {"name": "read_gauge", "description": "Reads a gauge.", "input_schema": READING}


@case()
def messages_whole(c: Context) -> None:
    answer = c.anthropic().messages.create(model=MODEL, messages=QUESTION, system=SYSTEM, max_tokens=8)
    assert answer.type == "message" and answer.role == "assistant"
    assert answer.content[0].type == "text" and answer.stop_reason in ("max_tokens", "end_turn")
    c.saw("messages", answer.usage)


@case()
def messages_streamed(c: Context) -> None:
    events = list(c.anthropic().messages.create(model=MODEL, messages=QUESTION, max_tokens=8, stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    assert "content_block_delta" in kinds
    c.saw("messages", events[-2].usage)


@case()
def messages_stream_helper(c: Context) -> None:
    with c.anthropic().messages.stream(model=MODEL, messages=QUESTION, max_tokens=8) as stream:
        text = "".join(stream.text_stream)
        answer = stream.get_final_message()
    assert text and answer.content[0].text == text
    c.saw("messages", answer.usage)


@case()
def messages_cached(c: Context) -> None:
    """The second of two equal prompts is cached in part. The SDK's `input_tokens` leaves that part out, the record does
    not."""
    client = c.anthropic()
    first = client.messages.create(model=MODEL, messages=QUESTION, system=SYSTEM * 3, max_tokens=4)
    c.saw("messages", first.usage)
    # Both engines may serve: by the third time one has seen the prompt.
    cached = 0
    for _ in range(2):
        with client.messages.stream(model=MODEL, messages=QUESTION, system=SYSTEM * 3, max_tokens=4) as stream:
            usage = stream.get_final_message().usage
        cached = max(cached, usage.cache_read_input_tokens or 0)
        c.saw("messages", usage)
    assert cached > 0, usage


@case("small", "sim")
def messages_tool_use(c: Context) -> None:
    answer = c.anthropic().messages.create(
        model=MODEL, messages=QUESTION, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=64
    )
    assert answer.stop_reason in ("tool_use", "max_tokens")
    if c.engine == "sim":
        block = next(block for block in answer.content if block.type == "tool_use")
        assert block.name == "read_gauge" and isinstance(block.input, dict)
    c.saw("messages", answer.usage)


@case("small", "sim")
def messages_tool_use_streamed(c: Context) -> None:
    events = list(
        c.anthropic().messages.create(
            model=MODEL, messages=QUESTION, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=64, stream=True
        )
    )
    started = [event.content_block for event in events if event.type == "content_block_start"]
    assert any(block.type == "tool_use" and block.name == "read_gauge" for block in started), started
    deltas = [event.delta.type for event in events if event.type == "content_block_delta"]
    assert "input_json_delta" in deltas, deltas
    c.saw("messages", events[-2].usage)


@case("vllm")
def messages_tools_offered(c: Context) -> None:
    """A model of random weights calls no tool on purpose; what the tools add to the prompt is counted."""
    bare = c.anthropic().messages.create(model=MODEL, messages=QUESTION, max_tokens=4)
    c.saw("messages", bare.usage)
    events = list(
        c.anthropic().messages.create(
            model=MODEL, messages=QUESTION, tools=[TOOL], tool_choice={"type": "auto"}, max_tokens=12, stream=True
        )
    )
    c.saw("messages", events[-2].usage)
    first, second = (one["input"] for one in c.seen)
    assert second > first + 20, c.seen


@case()
def messages_with_the_raw_response(c: Context) -> None:
    raw = c.anthropic().messages.with_raw_response.create(model=MODEL, messages=QUESTION, max_tokens=4)
    assert raw.http_response.status_code == 200 and raw.headers["x-request-id"]
    c.saw("messages", raw.parse().usage)


@case()
def messages_count_tokens(c: Context) -> None:
    counted = c.anthropic().messages.count_tokens(model=MODEL, messages=QUESTION)
    assert counted.input_tokens > 5
    c.saw("count_tokens")
    answer = c.anthropic().messages.create(model=MODEL, messages=QUESTION, max_tokens=2)
    c.saw("messages", answer.usage)
    assert c.seen[-1]["input"] == counted.input_tokens, c.seen


@case()
def anthropic_models(c: Context) -> None:
    client = c.anthropic()
    assert MODEL in [model.id for model in client.models.list()]
    model = client.models.retrieve(MODEL)
    assert model.id == MODEL and model.type == "model"
