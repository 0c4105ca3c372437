"""The bodies of requests: fields, kinds and bounds as vLLM 0.32's server has them.

A field without effect here is refused with its name, unless it cannot change the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)

from paceline.core.json_types import Json, JsonObject
from paceline.evaluation.server.grammar import schema_of
from paceline.evaluation.server.shapes import RequestError, misread

MOST_ANSWERS = 128  # prompts × n of one request
MOST_LOGPROBS = 20
_INT64 = 1 << 63
_BIAS = 100.0
#: Of no effect on an answer, or request for by every client.
_NOTED_ONLY = frozenset({"user", "metadata", "store", "service_tier", "session_id", "include"}) | {
    *("cache_salt", "prompt_cache_key", "prompt_cache_retention", "safety_identifier")
}
_NEUTRAL: tuple[Json, ...] = (None, False, 0, "", "auto", [], {}, {"type": "text"})
_USUAL: JsonObject = {"spaces_between_special_tokens": True, "length_penalty": 1.0, "include_reasoning": True}

JsonValues: TypeAlias = dict[str, JsonValue]
NoneAsZero = Annotated[int, BeforeValidator(lambda value: 0 if value is None else value)]


class StreamOptions(BaseModel):
    """What a stream contains besides its text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class CommonRequest(BaseModel):
    """What both kinds of request have. Raises RequestError by ``parsed``."""

    # Unknown fields are refused by name in ``check``
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    n: int | None = 1
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    allowed_token_ids: list[int] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: JsonValues | None = None

    @classmethod
    def parsed(cls, body: JsonObject) -> Self:
        """Return the request. Raises RequestError."""
        try:
            request = cls.model_validate(body)
        except ValidationError as error:
            raise misread(error) from error
        request.check()
        return request

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def length(self) -> int | None:
        """The maximum number of tokens of an answer, if the request has one."""
        return self.max_tokens

    @property
    def length_name(self) -> str:
        """The name of the request's field that holds ``length``."""
        return "max_tokens"

    @property
    def least_length(self) -> int:
        """The minimum of ``length``."""
        return 1

    @property
    def stream_usage(self) -> tuple[bool, bool]:
        """Whether every event of a stream has token counts, and whether a last extra event has them."""
        options = self.stream_options or StreamOptions()
        last = bool(options.include_usage)
        return last and bool(options.continuous_usage_stats), last

    @property
    def top(self) -> int | None:
        """The number of likeliest tokens whose log-probabilities are wanted; None: no log-probabilities."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise RequestError for values out of bounds and for fields that do nothing."""
        self._check_numbers()
        if any(not stop for stop in self.stops):
            raise RequestError("stop cannot contain an empty string.", "stop")
        for name in self.logit_bias or ():
            # JSON's keys are texts.
            if not name.lstrip("+-").isdecimal():
                raise RequestError(f"logit_bias: {name!r} is no token id", "logit_bias")
        if self.allowed_token_ids == []:
            raise RequestError("allowed_token_ids is empty: no token could be written", "allowed_token_ids")
        if self.stream_options and self.stream_options.model_fields_set and not self.stream:
            raise RequestError("stream_options can only be defined when stream is true", "stream_options")
        self._check_format()
        idle = [
            name
            for name, value in (self.model_extra or {}).items()
            if name not in _NOTED_ONLY and value not in _NEUTRAL and value != _USUAL.get(name)
        ]
        if idle:
            raise RequestError(f"fields that this server does not have: {', '.join(sorted(idle))}", idle[0])

    def _check_numbers(self) -> None:
        for name, low, high in (
            ("temperature", 0, 2),
            ("frequency_penalty", -2, 2),
            ("presence_penalty", -2, 2),
            ("min_p", 0, 1),
            ("top_k", -1, _INT64),
            ("min_tokens", 0, _INT64),
            ("n", 1, MOST_ANSWERS),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # a NaN is not, either
                bounds = f"at least {low}" if high == _INT64 else f"in [{low}, {high}]"
                raise RequestError(f"{name} must be {bounds}, got {value}", name)
        for name, most in (("top_p", 1.0), ("repetition_penalty", float("inf"))):
            value = getattr(self, name)
            if value is not None and not (0 < value <= most and value < float("inf")):
                raise RequestError(
                    f"{name} must be above 0{' and at most 1' * (most == 1)}, got {value}", name
                )
        if self.length is not None and self.length < self.least_length:
            name = self.length_name
            raise RequestError(f"{name} must be at least {self.least_length}, got {self.length}", name)
        if self.length is not None and self.min_tokens > self.length:
            raise RequestError(
                f"min_tokens must be at most {self.length_name}={self.length}, got {self.min_tokens}",
                "min_tokens",
            )
        if self.top is not None and not 0 <= self.top <= MOST_LOGPROBS:
            raise RequestError(
                f"log-probabilities of at most {MOST_LOGPROBS} tokens are given, request for {self.top}",
                "logprobs",
            )

    def _check_format(self) -> None:
        """Raise RequestError for an invalid form, or with options that could leave no token to choose."""
        if not self.is_formed:
            return
        for name in ("allowed_token_ids", "ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise RequestError(
                    f"{name} and response_format exclude each other: the form says which tokens may come"
                    " and where the answer ends",
                    name,
                )

    @property
    def is_formed(self) -> bool:
        """Whether the answer must match a JSON schema. Raises RequestError."""
        return schema_of(self.response_format) is not None

    @property
    def bias(self) -> dict[int, float]:
        """The biases of token ids, each within ±100."""
        return {int(k): min(_BIAS, max(-_BIAS, v)) for k, v in (self.logit_bias or {}).items()}


class ChatRequest(CommonRequest):
    """``/v1/chat/completions``."""

    messages: list[JsonValues]
    logprobs: bool | None = False
    top_logprobs: NoneAsZero = 0
    max_completion_tokens: int | None = None
    tools: list[JsonValues] | None = None
    tool_choice: Literal["none", "auto", "required"] | JsonValues | None = None
    parallel_tool_calls: bool | None = True
    documents: list[JsonValues] | None = None
    chat_template_kwargs: JsonValues | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True

    @property
    def length(self) -> int | None:
        """Return the limit of an answer's length; the newer field name wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def length_name(self) -> str:
        """Return the name of the field that is used."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def top(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise RequestError("messages is empty: at least one message is needed", "messages")
        if self.top_logprobs and not self.logprobs:
            raise RequestError("when using top_logprobs, logprobs must be set to true", "top_logprobs")
        if self.tools == []:
            raise RequestError("tools must not be an empty array: leave it out", "tools")
        for number, tool in enumerate(self.tools or ()):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise RequestError(f"tools[{number}].function.name must be a text, got {tool!r:.80}", "tools")
        if self.tool_choice not in (None, "none") and not self.tools:
            raise RequestError("when using tool_choice, tools must be set", "tool_choice")
        if self.tools and self.tool_choice != "none" and self.is_formed:
            raise RequestError(
                "a form and calls of tools exclude each other: leave response_format or tools out, or set"
                ' tool_choice to "none"',
                "response_format",
            )
        if self.tool_choice not in (None, "none", "auto"):
            raise RequestError(
                'a call of a tool cannot be forced here: tool_choice may be "auto" or "none"', "tool_choice"
            )


TokenIds = list[Annotated[int, Field(ge=0)]]


class CompletionRequest(CommonRequest):
    """``/v1/completions``."""

    prompt: TokenIds | list[TokenIds] | str | list[str] | None = None
    logprobs: int | None = None
    add_special_tokens: bool = True
    echo: bool | None = False

    @property
    def top(self) -> int | None:
        return self.logprobs

    @property
    def least_length(self) -> int:
        """Return 0 for a request that only wants its prompt's log-probabilities back, else 1."""
        return 0 if self.echo else 1

    @property
    def prompts(self) -> Sequence[str | TokenIds]:
        """The prompts, as text or as token ids."""
        prompt = self.prompt or []
        if isinstance(prompt, str):
            return [prompt]
        # A list of numbers is one prompt; a list of lists, or of texts, is several.
        ids = [item for item in prompt if isinstance(item, int)]
        return [ids] if ids else [item for item in prompt if not isinstance(item, int)]

    @model_validator(mode="after")
    def _has_prompt(self) -> Self:
        if self.prompt in (None, "", []):
            raise ValueError("a prompt that is not empty is needed")
        return self

    def check(self) -> None:
        super().check()
        if not all(self.prompts):
            raise RequestError("a prompt is empty", "prompt")
        if len(self.prompts) * (self.n or 1) > MOST_ANSWERS:
            raise RequestError(
                f"at most {MOST_ANSWERS} answers are written for one request (prompts × n)", "prompt"
            )
