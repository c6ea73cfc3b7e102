"""OpenAI's SDK: every API, streamed and whole, with sync clients."""

from __future__ import annotations

import json
from typing import Literal

import openai
from pydantic import BaseModel

from cases import MODEL, QUESTION, READING, RESTLESS, SYSTEM, Context, case, chat_text

TOOL = {
    "type": "function",
    "function": {"name": "read_gauge", "description": "Reads a gauge.", "strict": True, "parameters": READING},
}
NAMED = {"type": "function", "function": {"name": "read_gauge"}}


class Reading(BaseModel):
    gauge: Literal["north", "south"]
    rising: bool


@case()
def chat_whole(c: Context) -> None:
    answer = c.openai().chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=8)
    assert answer.object == "chat.completion" and answer.model == MODEL
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage is not None and answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id, "Envoy's request id reaches the SDK"
    c.saw("chat_completions", answer.usage)


@case()
def chat_stream_without_usage(c: Context) -> None:
    stream = c.openai().chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=8, stream=True)
    chunks = list(stream)
    assert all(chunk.usage is None for chunk in chunks), "usage that the client did not ask for"
    assert all(chunk.choices for chunk in chunks), "a chunk without choices is the usage chunk"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")
    c.saw("chat_completions")


@case()
def chat_stream_with_usage(c: Context) -> None:
    stream = c.openai().chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert all(chunk.usage is None for chunk in chunks[:-1]), "usage comes with the last chunk only"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    c.saw("chat_completions", chunks[-1].usage)


@case("small", "vllm")
def chat_stream_with_running_usage(c: Context) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = c.openai().chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=8, stream=True, stream_options=options
    )
    usages = [chunk.usage for chunk in stream]
    assert all(usages) and usages[0].completion_tokens <= 1
    c.saw("chat_completions", usages[-1])


@case()
def chat_two_choices(c: Context) -> None:
    client = c.openai()
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=5, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    c.saw("chat_completions", answer.usage)
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=5, n=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}
    c.saw("chat_completions", chunks[-1].usage)


@case()
def chat_stream_helper(c: Context) -> None:
    with c.openai().chat.completions.stream(
        model=MODEL, messages=QUESTION, max_tokens=6, stream_options={"include_usage": True}
    ) as stream:
        try:
            kinds = {event.type for event in stream}
            assert {"chunk", "content.delta"} <= kinds, kinds
        except openai.LengthFinishReasonError:
            pass  # how the helper says that the answer was cut at `max_tokens`
        usage = stream.current_completion_snapshot.usage
    c.saw("chat_completions", usage)


@case("sim", "vllm")
def chat_logprobs(c: Context) -> None:
    client = c.openai()
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=3, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens and len(content[0].top_logprobs) >= 2
    c.saw("chat_completions", answer.usage)
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=3, logprobs=True, top_logprobs=2, stream=True
    )
    found = [choice.logprobs for chunk in stream for choice in chunk.choices if choice.logprobs]
    assert found and found[0].content
    c.saw("chat_completions")


@case("sim", "vllm")
def chat_tool_required(c: Context) -> None:
    answer = c.openai().chat.completions.create(
        model=MODEL, messages=QUESTION, tools=[TOOL], tool_choice="required", **RESTLESS
    )
    call = answer.choices[0].message.tool_calls[0]
    assert call.type == "function" and call.function.name == "read_gauge"
    assert json.loads(call.function.arguments)["gauge"] in ("north", "south")
    assert answer.choices[0].finish_reason == "tool_calls"
    c.saw("chat_completions", answer.usage)


@case("sim", "vllm")
def chat_tool_named(c: Context) -> None:
    answer = c.openai().chat.completions.create(
        model=MODEL, messages=QUESTION, tools=[TOOL], tool_choice=NAMED, **RESTLESS
    )
    assert json.loads(answer.choices[0].message.tool_calls[0].function.arguments)["gauge"] in ("north", "south")
    c.saw("chat_completions", answer.usage)


@case()
def chat_tool_auto(c: Context) -> None:
    answer = c.openai().chat.completions.create(model=MODEL, messages=QUESTION, tools=[TOOL], max_tokens=12)
    assert answer.choices[0].message.role == "assistant"
    c.saw("chat_completions", answer.usage)


@case()
def chat_tool_streamed(c: Context) -> None:
    """The call comes in pieces: its name first, its arguments bit by bit."""
    stream = c.openai().chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        tools=[TOOL],
        tool_choice="required",
        stream=True,
        stream_options={"include_usage": True},
        **RESTLESS,
    )
    chunks = list(stream)
    deltas = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert deltas[0].function.name == "read_gauge" and deltas[0].id
    arguments = "".join(delta.function.arguments or "" for delta in deltas)
    assert len(deltas) > 2 and all(delta.function.name is None for delta in deltas[1:])
    if c.engine != "small":
        assert json.loads(arguments)["gauge"] in ("north", "south")
    c.saw("chat_completions", chunks[-1].usage)


@case("sim", "vllm")
def chat_tool_answered(c: Context) -> None:
    """The second half of a tool call: the client hands its result back."""
    call = {"id": "call_1", "type": "function", "function": {"name": "read_gauge", "arguments": '{"gauge":"north"}'}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3 m"},
    ]
    answer = c.openai().chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], max_tokens=6)
    c.saw("chat_completions", answer.usage)


@case("vllm")
def chat_structured(c: Context) -> None:
    schema = {"name": "reading", "strict": True, "schema": READING}
    answer = c.openai().chat.completions.create(
        model=MODEL, messages=QUESTION, response_format={"type": "json_schema", "json_schema": schema}, **RESTLESS
    )
    assert json.loads(answer.choices[0].message.content)["gauge"] in ("north", "south")
    c.saw("chat_completions", answer.usage)


@case("vllm")
def chat_parsed(c: Context) -> None:
    answer = c.openai().chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Reading, **RESTLESS)
    reading = answer.choices[0].message.parsed
    assert isinstance(reading, Reading) and isinstance(reading.rising, bool)
    c.saw("chat_completions", answer.usage)


@case("vllm")
def chat_parsed_streamed(c: Context) -> None:
    with c.openai().chat.completions.stream(
        model=MODEL,
        messages=QUESTION,
        response_format=Reading,
        stream_options={"include_usage": True},
        **RESTLESS,
    ) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert isinstance(answer.choices[0].message.parsed, Reading)
    c.saw("chat_completions", answer.usage)


@case()
def chat_with_the_raw_response(c: Context) -> None:
    raw = c.openai().chat.completions.with_raw_response.create(
        model=MODEL, messages=chat_text("hello"), max_tokens=4
    )
    assert raw.http_response.status_code == 200 and raw.headers["content-type"].startswith("application/json")
    assert raw.headers["x-request-id"] and raw.retries_taken == 0
    told = {name for name in raw.headers if name.startswith(("x-tokenweir", "x-gateway"))}
    assert not told, f"the gateway's own headers reach no client: {told}"
    c.saw("chat_completions", raw.parse().usage)
    with c.openai().chat.completions.with_streaming_response.create(
        model=MODEL, messages=chat_text("hello"), max_tokens=4, stream=True
    ) as raw:
        assert raw.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in raw.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and '"usage"' not in "".join(lines)
    c.saw("chat_completions")


@case()
def completions_whole_and_streamed(c: Context) -> None:
    client = c.openai()
    answer = client.completions.create(model=MODEL, prompt="The weir", max_tokens=6)
    assert answer.object == "text_completion" and answer.choices[0].text
    c.saw("completions", answer.usage)
    stream = client.completions.create(
        model=MODEL, prompt="The weir", max_tokens=6, stream=True, stream_options={"include_usage": True}
    )
    c.saw("completions", list(stream)[-1].usage)
    chunks = list(client.completions.create(model=MODEL, prompt="The weir", max_tokens=6, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    c.saw("completions")


@case()
def completions_batch(c: Context) -> None:
    client = c.openai()
    prompts = ["The weir", "The mill and the gauge"]
    answer = client.completions.create(model=MODEL, prompt=prompts, max_tokens=4, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    c.saw("completions", answer.usage)
    stream = client.completions.create(
        model=MODEL, prompt=prompts, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    c.saw("completions", list(stream)[-1].usage)


@case("vllm")
def completions_logprobs(c: Context) -> None:
    answer = c.openai().completions.create(model=MODEL, prompt="The weir", max_tokens=3, logprobs=1)
    assert len(answer.choices[0].logprobs.tokens) == 3
    c.saw("completions", answer.usage)


@case()
def responses_whole(c: Context) -> None:
    answer = c.openai().responses.create(model=MODEL, input="hello", instructions=SYSTEM, max_output_tokens=8)
    assert answer.object == "response" and answer.output[0].type == "message" and answer.output_text
    c.saw("responses", answer.usage)


@case()
def responses_streamed(c: Context) -> None:
    """The last event is not always the same: an answer that was cut short is `incomplete`."""
    stream = c.openai().responses.create(model=MODEL, input="hello", max_output_tokens=8, stream=True)
    events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and "response.output_text.delta" in kinds
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds
    c.saw("responses", events[-1].response.usage)


@case()
def responses_stream_helper(c: Context) -> None:
    with c.openai().responses.stream(model=MODEL, input="hello", max_output_tokens=8) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        answer = stream.get_final_response()
    assert text and answer.output_text == text
    c.saw("responses", answer.usage)


@case("vllm")
def responses_parsed(c: Context) -> None:
    answer = c.openai().responses.parse(
        model=MODEL, input="How much?", text_format=Reading, max_output_tokens=300, extra_body={"presence_penalty": 2}
    )
    assert isinstance(answer.output_parsed, Reading)
    c.saw("responses", answer.usage)


@case("small")
def embeddings(c: Context) -> None:
    answer = c.openai().embeddings.create(model=MODEL, input=["The weir", "The mill"])
    assert [one.index for one in answer.data] == [0, 1] and len(answer.data[0].embedding) > 1
    c.saw("embeddings", answer.usage)


@case()
def models(c: Context) -> None:
    client = c.openai()
    listed = [model.id for model in client.models.list()]
    assert MODEL in listed, listed
    assert client.models.retrieve(MODEL).object == "model"
