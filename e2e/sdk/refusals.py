"""What goes wrong arrives as the SDK's own exception, with the fields it reads filled in."""

from __future__ import annotations

import anthropic
import openai

from cases import MODEL, QUESTION, Context, case, expect

BIG = "x" * (2 << 20)


def _openai(error: openai.APIStatusError, status: int, kind: str) -> None:
    assert error.status_code == status, error
    assert error.type == kind and error.message and error.request_id, error.body


def _anthropic(error: anthropic.APIStatusError, status: int, kind: str) -> None:
    assert error.status_code == status, error
    assert error.body["type"] == "error" and error.body["error"]["type"] == kind, error.body
    assert error.body["error"]["message"], error.body


@case(group="refusals")
def openai_unknown_model(c: Context) -> None:
    client = c.openai()
    calls = [
        lambda: client.chat.completions.create(model="nobody", messages=QUESTION),
        lambda: client.chat.completions.create(model="nobody", messages=QUESTION, stream=True),
        lambda: client.completions.create(model="nobody", prompt="x"),
        lambda: client.responses.create(model="nobody", input="x"),
        lambda: client.responses.create(model="nobody", input="x", stream=True),
        lambda: client.embeddings.create(model="nobody", input="x"),
    ]
    for call in calls:
        error = expect(openai.NotFoundError, call)
        _openai(error, 404, "NotFoundError")
        assert error.param == "model" and "nobody" in error.message and MODEL in error.message, error.body
    _openai(expect(openai.NotFoundError, lambda: client.models.retrieve("nobody")), 404, "NotFoundError")


@case(group="refusals")
def anthropic_unknown_model(c: Context) -> None:
    client = c.anthropic()
    calls = [
        lambda: client.messages.create(model="nobody", messages=QUESTION, max_tokens=4),
        lambda: client.messages.create(model="nobody", messages=QUESTION, max_tokens=4, stream=True),
        lambda: client.messages.count_tokens(model="nobody", messages=QUESTION),
        lambda: client.models.retrieve("nobody"),
    ]
    for call in calls:
        _anthropic(expect(anthropic.NotFoundError, call), 404, "not_found_error")


@case(group="refusals")
def openai_bad_request(c: Context) -> None:
    client = c.openai()
    error = expect(openai.BadRequestError, lambda: client.chat.completions.create(model="", messages=QUESTION))
    _openai(error, 400, "BadRequestError")
    # What could not be counted is refused, with the member that is to blame.
    error = expect(openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="x", background=True))
    _openai(error, 400, "BadRequestError")
    assert error.param == "background", error.body


@case(group="refusals")
def anthropic_bad_request(c: Context) -> None:
    client = c.anthropic()
    error = expect(
        anthropic.BadRequestError, lambda: client.messages.create(model="", messages=QUESTION, max_tokens=4)
    )
    _anthropic(error, 400, "invalid_request_error")


@case("sim", "vllm", group="refusals")
def an_engines_bad_request(c: Context) -> None:
    """The engine's own refusal passes through as it is, and is an exchange."""
    client = c.openai()
    error = expect(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=99_999),
    )
    _openai(error, 400, "BadRequestError")
    c.saw("chat_completions", status=400)
    error = expect(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=99_999, stream=True),
    )
    _openai(error, 400, "BadRequestError")
    c.saw("chat_completions", status=400)


@case(group="refusals")
def unknown_paths(c: Context) -> None:
    error = expect(openai.NotFoundError, lambda: c.openai().images.generate(model=MODEL, prompt="x"))
    _openai(error, 404, "NotFoundError")
    error = expect(openai.NotFoundError, lambda: c.openai().files.list())
    _openai(error, 404, "NotFoundError")
    _anthropic(expect(anthropic.NotFoundError, lambda: c.anthropic().messages.batches.list()), 404, "not_found_error")


@case(group="refusals")
def wrong_method(c: Context) -> None:
    error = expect(openai.APIStatusError, lambda: c.openai().get("/embeddings", cast_to=object))
    _openai(error, 405, "MethodNotAllowed")


@case(group="refusals")
def bad_tenant(c: Context) -> None:
    error = expect(
        openai.BadRequestError,
        lambda: c.openai(headers={"x-tenant": "a b"}).chat.completions.create(model=MODEL, messages=QUESTION),
    )
    _openai(error, 400, "BadRequestError")


@case("small", group="limits")
def too_large(c: Context) -> None:
    messages = [{"role": "user", "content": BIG}]
    error = expect(
        openai.APIStatusError, lambda: c.openai().chat.completions.create(model=MODEL, messages=messages)
    )
    _openai(error, 413, "RequestTooLarge")
    error = expect(
        anthropic.RequestTooLargeError,
        lambda: c.anthropic().messages.create(model=MODEL, messages=messages, max_tokens=4),
    )
    _anthropic(error, 413, "request_too_large")


@case("small", group="nobody")
def no_tenant(c: Context) -> None:
    """Asked of a gateway that knows no default tenant."""
    plain = {"base_url": f"{c.base_url}/v1", "api_key": "unused", "max_retries": 0}
    client = openai.OpenAI(**plain)
    error = expect(
        openai.AuthenticationError, lambda: client.chat.completions.create(model=MODEL, messages=QUESTION)
    )
    _openai(error, 401, "AuthenticationError")
    client = anthropic.Anthropic(base_url=c.base_url, api_key="unused", max_retries=0)
    error = expect(
        anthropic.AuthenticationError,
        lambda: client.messages.create(model=MODEL, messages=QUESTION, max_tokens=4),
    )
    _anthropic(error, 401, "authentication_error")


@case("small", group="away")
def no_endpoint(c: Context) -> None:
    """Asked while no endpoint is ready."""
    error = expect(
        openai.InternalServerError, lambda: c.openai().chat.completions.create(model=MODEL, messages=QUESTION)
    )
    _openai(error, 503, "ServiceUnavailable")
    assert int(error.response.headers["retry-after"]) >= 1
    client = c.anthropic()
    error = expect(
        anthropic.ServiceUnavailableError,
        lambda: client.messages.create(model=MODEL, messages=QUESTION, max_tokens=4),
    )
    _anthropic(error, 503, "overloaded_error")


@case("small", group="down")
def no_service(c: Context) -> None:
    """Asked while the service is away: Envoy's own answer is no JSON, and the SDKs take it all the same."""
    error = expect(
        openai.InternalServerError, lambda: c.openai().chat.completions.create(model=MODEL, messages=QUESTION)
    )
    assert error.status_code == 503
    expect(
        anthropic.ServiceUnavailableError,
        lambda: c.anthropic().messages.create(model=MODEL, messages=QUESTION, max_tokens=4),
    )


@case("small", group="retries")
def retries(c: Context) -> None:
    """The SDK's own retries: they wait as long as Retry-After says, and then find an endpoint."""
    raw = c.openai(max_retries=8).chat.completions.with_raw_response.create(
        model=MODEL, messages=QUESTION, max_tokens=4
    )
    assert raw.retries_taken >= 1, raw.retries_taken
    c.saw("chat_completions", raw.parse().usage)


@case("small", group="faults")
def engine_errors(c: Context) -> None:
    """A draining engine's 500 and a full queue's 503, from every engine of the pool."""
    for fault, status in (("draining", 500), ("queue-full", 503)):
        headers = {"x-engine-fault": fault}
        for stream in (False, True):
            error = expect(
                openai.InternalServerError,
                lambda: c.openai().chat.completions.create(
                    model=MODEL, messages=QUESTION, max_tokens=4, stream=stream, extra_headers=headers
                ),
            )
            assert error.status_code == status and error.message, error.body
            c.saw("chat_completions", status=status, end="upstream_error")


@case("small", group="faults")
def engine_dies_in_a_stream(c: Context) -> None:
    """The error comes as an event of the stream, after some tokens."""
    headers = {"x-engine-die-after": "6"}
    stream = c.openai().chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=40, stream=True, extra_headers=headers
    )
    chunks = []

    def read() -> None:
        for chunk in stream:
            chunks.append(chunk)

    error = expect(openai.APIError, read)
    assert "EngineCore" in error.message and len(chunks) == 6, (error, len(chunks))
    c.saw("chat_completions", end="upstream_error", output=5)
    stream = c.anthropic().messages.create(
        model=MODEL, messages=QUESTION, max_tokens=40, stream=True, extra_headers=headers
    )
    try:
        for _ in stream:
            pass
        raise AssertionError("no error")
    except anthropic.APIStatusError as error:
        assert "EngineCore" in error.message, error
    c.saw("messages", end="upstream_error")
