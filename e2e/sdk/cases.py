"""The register of cases, and what a case has at hand: clients that are a tenant of its own, and a list of what it saw.

Each case is one tenant, so that the records of the gateway can be told apart afterwards, whatever became of a request.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any, Callable

import anthropic
import openai

#: The engines that a case can be played against: the small one of `e2e`, the simulator, real vLLM.
ENGINES = frozenset({"small", "sim", "vllm"})
MODEL = "tiny-llama"
#: No call may hang for ever; no test measures this.
TIMEOUT_S = 120.0


@dataclass
class Case:
    """One function, and where it can be played."""

    name: str
    run: Callable[["Context"], Any]
    engines: frozenset[str]
    group: str


REGISTER: list[Case] = []


def case(*engines: str, group: str = "answers") -> Callable[[Callable[["Context"], Any]], Callable[["Context"], Any]]:
    """Registers a function as a case. Without engines: for all of them."""

    def register(run: Callable[["Context"], Any]) -> Callable[["Context"], Any]:
        name = run.__name__.replace("_", "-")
        REGISTER.append(Case(name, run, frozenset(engines) or ENGINES, group))
        return run

    return register


@dataclass
class Context:
    """What a case has at hand."""

    base_url: str
    tenant: str
    engine: str
    seen: list[dict[str, Any]] = field(default_factory=list)

    def _options(self, more: dict[str, Any]) -> dict[str, Any]:
        headers = {"x-tenant": self.tenant, **more.pop("headers", {})}
        return {
            "api_key": "unused",
            "max_retries": 0,
            "timeout": TIMEOUT_S,
            "default_headers": headers,
            **more,
        }

    def openai(self, **more: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.base_url}/v1", **self._options(more))

    def async_openai(self, **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.base_url}/v1", **self._options(more))

    def anthropic(self, **more: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.base_url, **self._options(more))

    def async_anthropic(self, **more: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.base_url, **self._options(more))

    def saw(self, api: str, usage: Any = None, **more: Any) -> None:
        """One exchange that reached an engine. `usage` is whatever the SDK gave; without it the counts are the record's
        affair, and only have to be there."""
        self.seen.append({"api": api, "end": "complete", **count(usage), **more})


def count(usage: Any) -> dict[str, int | None]:
    """The SDKs' usage objects, as one: tokens in (cached ones too), out, cached."""
    if usage is None:
        return {}
    if hasattr(usage, "prompt_tokens"):
        details = getattr(usage, "prompt_tokens_details", None)
        cached = getattr(details, "cached_tokens", None) if details is not None else None
        return {
            "input": usage.prompt_tokens,
            "output": getattr(usage, "completion_tokens", 0) or 0,
            "cached": cached,
        }
    details = getattr(usage, "input_tokens_details", None)
    if details is not None:
        return {"input": usage.input_tokens, "output": usage.output_tokens, "cached": details.cached_tokens}
    # Anthropic leaves the cached tokens out of its input tokens.
    cached = usage.cache_read_input_tokens
    written = usage.cache_creation_input_tokens
    return {
        "input": usage.input_tokens + (cached or 0) + (written or 0),
        "output": usage.output_tokens,
        "cached": cached,
    }


def play(one: Case, base_url: str, engine: str) -> dict[str, Any]:
    """Plays a case and says how it went."""
    context = Context(base_url=base_url, tenant=one.name, engine=engine)
    error = None
    try:
        one.run(context)
    except Exception:  # noqa: BLE001 - whatever it was, the suite shows it
        error = traceback.format_exc()
    return {"case": one.name, "error": error, "exchanges": context.seen}


def expect(kind: type[BaseException], call: Callable[[], Any]) -> Any:
    """The exception of exactly this type that `call` must raise."""
    try:
        answer = call()
    except kind as error:
        assert type(error) is kind, f"{type(error)} instead of {kind}"
        return error
    raise AssertionError(f"no {kind.__name__}, but {answer!r}")


def chat_text(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


SYSTEM = "You are the keeper of a weir. You say how much water passed, and you name the gauge that you read. " * 3
QUESTION = chat_text("How much water passed the north gauge this morning?")
READING = {
    "type": "object",
    "properties": {"gauge": {"type": "string", "enum": ["north", "south"]}},
    "required": ["gauge"],
    "additionalProperties": False,
}
#: A model of random weights writes white space for ever where it may; these make it come to an end.
RESTLESS = {"presence_penalty": 2, "frequency_penalty": 2, "max_tokens": 300}
