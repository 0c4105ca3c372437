"""An engine that calls an OpenAI-style completions server (as vLLM's) which returns token ids."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import torch

from paceline.core.errors import PacelineError
from paceline.core.json_types import Json, JsonObject
from paceline.generation import codes
from paceline.generation.engine import Completion, Request, RolloutSampling

_AGAIN = frozenset({429, 502, 503, 504})  # the server is busy or starting
_PAUSE_SECONDS = 0.5
_IDLE_SECONDS = 2.0  # vLLM closes a connection that was idle for 5: one that is used then is cut
_KEY = "training.rollout.server"
_NO_KEY = f"set {_KEY}.api_key_env to the environment variable that holds the key"
_VERSION, _MODELS = "/weight_info", "/v1/models"
_COMPLETIONS, _GENERATE = "/v1/completions", "/inference/v1/generate"
_REMEDIES = {  # by HTTP status
    401: _NO_KEY,
    403: _NO_KEY,
    404: "use a vLLM server, started with VLLM_SERVER_DEV_MODE=1 so that it accepts new weights",
}


@dataclass
class Server:
    """The client of one server; every call ends within its deadline with an answer or an error.

        url      ``http://host:port``
        timeout  seconds that one answer may take, retries included
        patience seconds for which a connection that fails is tried again; ``timeout`` when empty
        key      sent as a bearer token, if any; never part of a message
        stop_requested  whether the run is to stop: then what fails is not tried again

    Raises PacelineError ``rollout.server_unreachable``, ``rollout.server_status``, ``rollout.server_answer``.
    """

    url: str
    timeout: float
    key: str | None = field(default=None, repr=False)
    patience: float | None = None
    stop_requested: Callable[[], bool] = field(default=lambda: False, repr=False)
    _client: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        # As many as there are requests at a time: ``together`` bounds them
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=64, keepalive_expiry=_IDLE_SECONDS
        )
        # No proxy of the environment: the server is one of the cluster's own
        self._client = httpx.Client(base_url=self.url, headers=headers, limits=limits, trust_env=False)

    def model(self) -> str:
        """Return the name of the served model, adapters aside. Raises if there are several."""
        served = self._served()
        names = [name for name, parent in served.items() if not parent]
        if len(names) != 1:
            raise self.wrong(_MODELS, f"models: {', '.join(names) or 'none'}", f"{_KEY}.model: NAME")
        return names[0]

    def has(self, name: str) -> bool:
        """Whether the server has this model or adapter."""
        return name in self._served()

    def _served(self) -> dict[str, str]:
        """Return what is served, and of adapters their model."""
        served = self.request("GET", _MODELS).get("data")
        models = [m for m in served if isinstance(m, dict)] if isinstance(served, list) else []
        return {str(m["id"]): str(m.get("parent") or "") for m in models if "id" in m}

    def request(
        self, method: str, path: str, body: Mapping[str, Json] | None = None, seconds: float | None = None
    ) -> dict[str, Any]:
        """Return the JSON object that the server answers with ({} for an empty body).

        Retries until the deadline while the connection fails or the server is busy.
        """
        response = self._exchange(method, path, body, seconds)
        if not response.content:
            return {}
        try:
            content = response.json()
        except ValueError as error:
            raise self.wrong(path, "no JSON") from error
        return content if isinstance(content, dict) else {"answer": content}

    def post(self, path: str, body: Mapping[str, Json], seconds: float) -> None:
        """POST what is answered by a status alone."""
        self._exchange("POST", path, body, seconds)

    def post_once(self, path: str, body: Mapping[str, Json], seconds: float) -> None:
        """POST what must not be sent twice: a connection that fails is not tried again."""
        self._exchange("POST", path, body, seconds, again=False)

    def takes(self, path: str) -> bool:
        """Whether the server takes requests at ``path``: it then refuses an empty one as invalid.

        vLLM answers 403 where the path is switched off.
        """
        try:
            response = self._client.post(path, json={}, timeout=self.timeout)
        except httpx.TransportError:
            return False
        return response.status_code in (400, 422)

    def offered(self, path: str, **parameters: str) -> JsonObject:
        """Return the JSON object at ``path``; {} where the server has none."""
        try:
            response = self._client.get(path, params=parameters, timeout=self.timeout)
            content = response.json() if response.status_code == 200 else None
        except (httpx.TransportError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _exchange(
        self,
        method: str,
        path: str,
        body: Mapping[str, Json] | None,
        seconds: float | None,
        again: bool = True,
    ) -> httpx.Response:
        """Return the server's answer of status 200."""
        limit = self.timeout if seconds is None else seconds
        patience = 0.0 if not again else limit if self.patience is None else min(limit, self.patience)
        deadline = time.monotonic() + limit
        while True:
            left = deadline - time.monotonic()
            try:
                response = self._client.request(method, path, json=body, timeout=max(left, 0.001))
            except httpx.TimeoutException as error:
                raise self._silent(path, f"no answer within {limit:g} s") from error
            except httpx.TransportError as error:
                # ``patience`` counts from the first attempt, as ``limit`` does.
                if left - (limit - patience) <= _PAUSE_SECONDS or self.stop_requested():
                    tried = limit - left
                    reason = f"{type(error).__name__}: {error} (for {tried:.0f} s)"
                    raise self._silent(path, reason) from error
            else:
                last = left <= _PAUSE_SECONDS or self.stop_requested()
                # Out of time, what a busy server said is reported as it is.
                if response.status_code not in _AGAIN or last:
                    return self._taken(path, response)
            time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _taken(self, path: str, response: httpx.Response) -> httpx.Response:
        """Return ``response`` unless the server refused the request."""
        if response.status_code != 200:
            text = " ".join(response.text.split())[:300]
            raise PacelineError(
                codes.ROLLOUT_SERVER_STATUS(
                    "the generation server refused a request",
                    f"{_KEY}.url",
                    f"{response.status_code} from {self.url}{path}: {text}",
                    _REMEDIES.get(response.status_code, "see the server's own log"),
                )
            )
        return response

    def _silent(self, path: str, reason: str) -> PacelineError:
        return PacelineError(
            codes.ROLLOUT_SERVER_UNREACHABLE(
                "the generation server does not answer",
                f"{_KEY}.url",
                f"{self.url}{path}: {reason}",
                "check that it is running and that this machine can reach it; if it is only slow,"
                " increase training.rollout.server.timeout",
            )
        )

    def wrong(
        self, path: str, reply: str, remedy: str = "use a vLLM server of version 0.12 or later"
    ) -> PacelineError:
        """Return the error for an invalid answer."""
        return PacelineError(
            codes.ROLLOUT_SERVER_ANSWER(
                "the generation server sent an invalid reply",
                f"{_KEY}.url",
                f"{self.url}{path}: {reply}",
                remedy,
            )
        )


@dataclass
class ServerEngine:
    """Answers of one server; each request has its own seed, ``together`` of them run at a time.

    The log-probabilities are the server's: those of the distribution it sampled from. Token ids beyond
    ``vocab_size`` are refused. ``adapter``: what is asked in place of ``model``, if it is loaded.
    ``version``: of the weights that the server must have; none where it keeps none. ``reports_version``: each
    answer says by the token which weights wrote it (vLLM's ``--enable-scale-out``).
    """

    server: Server
    model: str
    stop_ids: Sequence[int]
    vocab_size: int
    together: int = 64
    adapter: str = ""
    version: str = ""
    reports_version: bool | None = None

    def find_model(self) -> None:
        """Ask the server for its model's name, if unknown, and how it answers. Raises PacelineError.

        Of the weights nothing is known until they are sent: it may have been started anew.
        """
        self.model, self.version = self.model or self.server.model(), ""
        if self.adapter and not self.server.has(self.adapter):
            self.adapter = ""
        if self.reports_version is None:
            self.reports_version = self.server.takes(_GENERATE)

    def take(self, model: str, adapter: str, version: str, reports_version: bool | None) -> None:
        """Take over what another rank knows of the server."""
        self.model, self.adapter, self.version = model, adapter, version
        self.reports_version = reports_version

    def load_adapter(self, name: str, folder: str, seconds: float) -> None:
        """Have the server load the adapter in ``folder``, and ask for its answers from now on.

        Not in place: vLLM 0.32 would read the folder again for each step, and end if it is gone.
        """
        if self.server.has(name):
            self.server.post("/v1/unload_lora_adapter", {"lora_name": name}, seconds)
        # from a new path each time: cached prefixes are kept by it
        self.server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}, seconds)
        self.adapter = name

    def stamp(self, version: str) -> None:
        """Give the server's weights a version, where it keeps one."""
        if isinstance(self.server.offered(_VERSION).get("weight_version"), str):
            self.server.request("POST", "/update_weight_version", {"new_version": version})
            self.version = version

    def current_version(self) -> str:
        """Return the version that the server keeps for its weights; empty where it keeps none."""
        return str(self.server.offered(_VERSION).get("weight_version") or "")

    def check_version(self) -> None:
        """Raise PacelineError ``rollout.server_version`` if the server's weights are others by now, where its
        answers do not say so.
        """
        reads = self.version and not self.reports_version
        now = self.server.request("GET", _VERSION).get("weight_version") if reads else self.version
        if now != self.version:
            raise self._other_version(f"version {now}")

    def _other_version(self, found: str) -> PacelineError:
        words = f"{self.server.url}: {found}, sent {self.version}"
        return PacelineError(codes.ROLLOUT_SERVER_VERSION(f"{_KEY}.url", words))

    def answer(self, request: Request, sampling: RolloutSampling) -> Completion:
        """Return the completion of one request. Raises PacelineError ``rollout.server_*``."""
        if request.max_tokens <= 0:
            return Completion((), torch.zeros(0), False)
        return self._complete(request, sampling)

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Return log p(token | those before it) of each but the first, at temperature 1.

        Nothing else may be in flight: vLLM 0.32 with ``--enable-lora`` ends on this one beside another.
        """
        path = _COMPLETIONS
        body: JsonObject = {
            "model": self.adapter or self.model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 1.0,
            # 0: of the prompt's own tokens, without alternatives.
            "prompt_logprobs": 0,
            "seed": 0,
            "ignore_eos": True,
        }
        reply = self.server.request("POST", path, body)
        try:
            (choice,) = reply["choices"]
            entries = choice["prompt_logprobs"][1:]
            values = [
                float(entry[str(token)]["logprob"]) for entry, token in zip(entries, tokens[1:], strict=True)
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise self.server.wrong(path, f"{type(error).__name__}: {error}; {str(reply)[:200]}") from error
        if not all(math.isfinite(value) for value in values):
            raise self.server.wrong(path, "a log-probability that is not a number")
        return values

    def _complete(self, request: Request, sampling: RolloutSampling) -> Completion:
        common: JsonObject = {
            "max_tokens": request.max_tokens,
            "seed": request.stream,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            # -1 is the server's name for all tokens
            "top_k": sampling.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "logprobs": 1,
            "stop_token_ids": list(self.stop_ids),
            # The answer ends at ``stop_token_ids`` alone, as the local engine's does
            "ignore_eos": True,
            "skip_special_tokens": False,
        }
        model, prompt = self.adapter or self.model, list(request.prompt)
        by_token = bool(self.reports_version and self.version)
        if by_token:
            path = _GENERATE
            body: JsonObject = {"model": model, "token_ids": prompt, "sampling_params": common}
        else:
            path = _COMPLETIONS
            more: JsonObject = {"return_token_ids": True, "return_tokens_as_token_ids": True}
            body = {"model": model, "prompt": prompt, **common, **more}
        reply = self.server.request("POST", path, body)
        try:
            (choice,) = reply["choices"]
            logs = choice["logprobs"]
            tokens = choice.get("token_ids")
            if by_token:
                logprobs = [float(entry["logprob"]) for entry in logs["content"]]
                spans = [
                    (str(s["version"]), int(s["start"]), int(s["end"])) for s in choice["weight_versions"]
                ]
            else:
                if tokens is None:
                    tokens = [int(str(t).removeprefix("token_id:")) for t in logs["tokens"]]
                logprobs, spans = [float(v) for v in logs["token_logprobs"]], []
            reason = str(choice["finish_reason"])
        except (KeyError, TypeError, ValueError) as error:
            raise self.server.wrong(path, f"{type(error).__name__}: {error}; {str(reply)[:200]}") from error
        wrong = self._doubts(request, tokens, logprobs, reason)
        if wrong:
            raise self.server.wrong(path, wrong)
        for version, start, end in spans:
            if version != self.version:
                raise self._other_version(f"tokens {start} to {end - 1} of an answer by version {version}")
        return Completion(
            tuple(tokens), torch.tensor(logprobs, dtype=torch.float32), tokens[-1] in self.stop_ids
        )

    def _doubts(self, request: Request, tokens: Sequence[Any], logprobs: Sequence[float], reason: str) -> str:
        """Return why this cannot be an answer to ``request``; empty if it is valid."""
        if not all(isinstance(t, int) and 0 <= t < self.vocab_size for t in tokens):
            return f"token ids outside of this vocabulary of {self.vocab_size}"
        if not 0 < len(tokens) <= request.max_tokens or len(tokens) != len(logprobs):
            return (
                f"{len(tokens)} tokens with {len(logprobs)} log-probabilities, where 1 to"
                f" {request.max_tokens} were requested"
            )
        if not all(math.isfinite(v) for v in logprobs):
            return "a log-probability that is not a number"
        # It must end at its first stop token, or at the maximum length.
        ended = tokens[-1] in self.stop_ids
        if any(t in self.stop_ids for t in tokens[:-1]) or (not ended and len(tokens) < request.max_tokens):
            return (
                f"an answer that ends (finish_reason {reason}) neither at a stop token nor at the"
                " maximum length"
            )
        return ""
