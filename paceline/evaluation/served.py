"""The handlers of Transformers' server around one model, whose name and settings are the run's own.

``transformers serve`` loads what a request names and knows no settings but the model's; here every request is
about the one model that is loaded, and what a request leaves open is as the run's ``generation:`` has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import HTTPException
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.systemone import SystemOneHandler
from transformers.cli.serving.transcription import TranscriptionHandler
from transformers.cli.serving.utils import BaseHandler, GenerationState

from paceline.core.json_types import Json, JsonObject, as_number
from paceline.generation.answer import Sampling

if TYPE_CHECKING:
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse, StreamingResponse
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_SAID_ONLY = frozenset(  # of no effect on an answer, or asked for by every client
    {"user", "metadata", "store", "service_tier", "stream_options", "parallel_tool_calls", "include"}
)
_NEUTRAL: tuple[Json, ...] = (None, False, 0, "", "auto", [], {}, {"type": "text"})


@dataclass(frozen=True)
class Served:
    """The model that is served: under one name, with the settings of requests that leave them open.

    ``ends``: the tokens that end an answer.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    sampling: Sampling
    ends: tuple[int, ...]
    pad: int


class OneModelHandler(BaseHandler):
    """What every handler does with a request: the model and the settings are ``served``'s."""

    served: Served

    def _resolve_model(self, body: JsonObject) -> tuple[str, PreTrainedModel, PreTrainedTokenizerFast]:
        requested = body.get("model")
        if requested not in (None, self.served.name):
            raise HTTPException(
                404, f"there is one model here, {self.served.name!r}; requested: {requested!r}"
            )
        return self.served.name, self.served.model, self.served.tokenizer

    def _validate_request(self, body: JsonObject) -> None:
        super()._validate_request(body)
        given = {**body, "n": None if body.get("n") == 1 else body.get("n")}
        fields = self._unused_fields | {"generation_config"}
        wrong = sorted({name for name in fields if given.get(name) not in _NEUTRAL} - _SAID_ONLY)
        if wrong:
            hint = "temperature, top_p, max_tokens, stop and seed do"
            raise HTTPException(400, f"these fields do nothing here: {', '.join(wrong)}; {hint}")

    def _build_generation_config(
        self, body: JsonObject, model_generation_config: GenerationConfig, use_cb: bool = False
    ) -> GenerationConfig:
        open_ones = {**body, "temperature": None, "top_p": None}
        config = super()._build_generation_config(open_ones, model_generation_config, use_cb=use_cb)
        own = self.served.sampling
        has_length = any(body.get(name) is not None for name in _LENGTHS)
        temperature, top_p = body.get("temperature"), body.get("top_p")
        sampling = Sampling(
            int(config.max_new_tokens) if has_length else own.max_new_tokens,
            own.temperature if temperature is None else float(as_number(temperature)),
            own.top_p if top_p is None else float(as_number(top_p)),
            own.top_k,
        )
        for name, value in sampling.arguments().items():
            setattr(config, name, value)
        config.eos_token_id = list(self.served.ends) or None
        config.pad_token_id = self.served.pad
        return config


class ChatAnswers(OneModelHandler, ChatCompletionHandler):
    """``/v1/chat/completions``."""


class TextAnswers(OneModelHandler, CompletionHandler):
    """``/v1/completions``."""


class ResponseAnswers(OneModelHandler, ResponseHandler):
    """``/v1/responses``: streamed when the request says so (left open, Transformers would stream)."""

    async def handle_request(self, body: JsonObject, request_id: str) -> StreamingResponse | JSONResponse:
        """Answer one request."""
        return await super().handle_request({"stream": False, **body}, request_id)


def serving_app(served: Served) -> FastAPI:
    """Return Transformers' application with our handlers; ``serve.front`` stands before it."""
    manager, state = ModelManager(), GenerationState()
    for kind in (ChatAnswers, TextAnswers, ResponseAnswers):
        kind.served = served
    return build_server(
        manager,
        ChatAnswers(manager, state),
        completion_handler=TextAnswers(manager, state),
        response_handler=ResponseAnswers(manager, state),
        transcription_handler=TranscriptionHandler(manager, state),
        systemone_handler=SystemOneHandler(manager, state),
        generation_state=state,
    )
