"""Check before the start that the generation servers fit the run. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.sections.rollout import RolloutOptions, ServerOptions
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import JsonObject, as_object, value_at
from paceline.generation import codes as generation_codes
from paceline.training import codes
from paceline.training.preflight.weight_ways import SentPolicy, Way, best_way

if TYPE_CHECKING:
    import httpx

_SECONDS = 5.0  # for one answer that costs a server nothing
_SETTINGS_SECONDS = 30.0  # vLLM gathers what it says of its machine at the first question
_OLDEST = (0, 12)  # of vLLM: it returns token ids
_TEXT = "Two hands, 10 fingers:\n\tdef f(x): return x ** 2  # Größe, 你好, 🙂"


@dataclass(frozen=True)
class Needs:
    """What a run needs of its servers: ``max_length`` tokens of prompt and answer. Where they are known, also
    rows for ``vocab`` tokens, and the tokens of the tokenizer in ``folder``.
    """

    max_length: int
    vocab: int | None = None
    folder: Path | None = None

    def tokens(self) -> list[int] | None:
        """Return the tokens of a text; None where the folder has no ``tokenizer.json``."""
        file = self.folder / "tokenizer.json" if self.folder else None
        if file is None or not file.is_file():
            return None
        from tokenizers import Tokenizer

        try:
            return list(Tokenizer.from_file(str(file)).encode(_TEXT, add_special_tokens=False).ids)
        except Exception:  # noqa: BLE001  (a Rust panic's class; the tokenizer's own checks report it)
            return None


def missing_key(name: str | None, environ: Mapping[str, str]) -> Diagnostic | None:
    """Return ``rollout.server_no_key`` if the environment variable ``name`` is not set."""
    if name is None or environ.get(name):
        return None
    return codes.ROLLOUT_SERVER_NO_KEY("training.rollout.server.api_key_env", name, name=name)


def check_servers(
    options: RolloutOptions, needs: Needs, environ: Mapping[str, str], policy: SentPolicy | None = None
) -> Iterator[Diagnostic]:
    """Yield the problems of each server: address, key, version, model, tokens, length, weights,
    log-probabilities. They are asked together. Then the way by which all of them get ``policy``'s weights.

    One that does not answer is a warning: it may start later. Those that the run starts are not asked.
    """
    if options.start is not None:
        return
    where = "training.rollout.servers" if options.servers else "training.rollout.server"
    servers = [_Server(server, options.temperature, needs, where, environ) for server in options.all_servers]
    if servers:
        with ThreadPoolExecutor(len(servers)) as pool:
            for server, findings in zip(
                servers, pool.map(lambda each: list(each.check()), servers), strict=True
            ):
                for finding in findings:  # findings of one text at one key would be taken for one
                    several = f"{server.url}: {finding.what}" if len(servers) > 1 else finding.what
                    yield replace(finding, what=several)
    replies = {server.url: server.settings for server in servers if server.settings}
    if policy is not None and replies:
        way = best_way(options.weights, policy, replies)
        yield from (way.note("training.rollout.weights"),) if isinstance(way, Way) else way


def check_judge(url: str) -> Iterator[Diagnostic]:
    """Warn of a judge's server that does not answer; any answer is enough."""
    import httpx

    try:
        with httpx.Client(trust_env=False, timeout=_SECONDS) as client:
            client.get(url)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        yield generation_codes.ROLLOUT_SERVER_UNREACHABLE(
            f"the judge's server {url} does not answer yet",
            "training.rollout.rewards",
            f"{url}: {type(error).__name__}: {error}",
            "start it before the run, or correct the url",
            Severity.WARNING,
        )


@dataclass
class _Server:
    """One server; ``where``: the key that names it."""

    options: ServerOptions
    temperature: float
    needs: Needs
    where: str
    environ: Mapping[str, str]
    served: str = ""  # the model's name, once it is found
    settings: JsonObject = field(default_factory=dict)  # its ``/server_info``

    @property
    def url(self) -> str:
        return self.options.url.rstrip("/")

    def check(self) -> Iterator[Diagnostic]:
        """Yield the findings."""
        missing = missing_key(self.options.api_key_env, self.environ)
        if missing is not None:
            yield replace(missing, where=self.where, found=f"api_key_env: {missing.found}")
            return
        import httpx

        key = self.environ.get(self.options.api_key_env or "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            # a proxy of the environment would see the key
            with httpx.Client(
                base_url=self.url, trust_env=False, timeout=_SECONDS, headers=headers
            ) as client:
                models = client.get("/v1/models")
                yield from self._models(models)
                if models.status_code == httpx.codes.OK:
                    yield from self._version(client.get("/version"))
                    settings = client.get(
                        "/server_info", params={"config_format": "json"}, timeout=_SETTINGS_SECONDS
                    )
                    yield from self._settings(settings)
                    if self.served:
                        yield from self._tokens(client)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reply = f"{self.url}: {type(error).__name__}: {error}"
            hint = "start it before the run, or correct the url"
            yield generation_codes.ROLLOUT_SERVER_UNREACHABLE(
                "the generation server does not answer yet", self.where, reply, hint, Severity.WARNING
            )

    def _unfit(self, found: str, why: str, remedy: str) -> Diagnostic:
        return codes.ROLLOUT_SERVER_UNFIT(self.where, f"{self.url}: {found}", why=why, remedy=remedy)

    def _models(self, answer: httpx.Response) -> Iterator[Diagnostic]:
        """Yield a finding if the server lacks the model, or was started for shorter texts than the run's."""
        served = _json(answer).get("data")
        if not isinstance(served, list):
            yield generation_codes.ROLLOUT_SERVER_STATUS(
                "the generation server does not list its models",
                self.where,
                f"{self.url}/v1/models: HTTP {answer.status_code}",
                "correct the url, or the key behind api_key_env",
            )
            return
        # an adapter that a former run has loaded is none of them
        models = {str(m.get("id")): m for m in served if isinstance(m, dict) and not m.get("parent")}
        wanted = self.options.model or next(iter(models), "")
        if wanted not in models or (len(models) != 1 and not self.options.model):
            reply = f"it serves {', '.join(models) or 'none'}; model: {self.options.model or '(not set)'}"
            yield generation_codes.ROLLOUT_SERVER_ANSWER(
                "the generation server does not serve the model",
                self.where,
                reply,
                f"{self.where}.model: NAME",
            )
            return
        self.served = wanted
        longest, needed = models[wanted].get("max_model_len"), self.needs.max_length
        if isinstance(longest, int) and longest < needed:
            yield self._unfit(
                f"max_model_len {longest}, data.max_length {needed}",
                "it takes shorter texts than the run's",
                f"start it with --max-model-len {needed}, or set data.max_length: {longest}",
            )

    def _version(self, answer: httpx.Response) -> Iterator[Diagnostic]:
        """Yield a finding for a version of vLLM that returns no token ids."""
        text = str(_json(answer).get("version", ""))
        numbers = re.match(r"(\d+)\.(\d+)", text)
        if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST:
            yield self._unfit(
                f"version {text}", "it returns no token ids", "use vLLM 0.12 or later; 0.32 was tried"
            )

    def _settings(self, answer: httpx.Response) -> Iterator[Diagnostic]:
        """Yield a finding if the server cannot load weights, quantizes them, or returns other
        log-probabilities.
        """
        if answer.status_code != 200:
            yield self._unfit(
                f"/server_info: HTTP {answer.status_code}",
                "it takes no new weights",
                "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment",
            )
            return
        self.settings = settings = _json(answer)
        quantized = value_at(settings, "vllm_config.model_config.quantization")
        if isinstance(quantized, str):
            yield self._unfit(
                f"quantization {quantized}",
                "it computes with quantized weights",
                "serve the plain model, without --quantization",
            )
        mode = value_at(settings, "vllm_config.model_config.logprobs_mode")
        if isinstance(mode, str) and mode.startswith("raw") and self.temperature not in (0.0, 1.0):
            yield self._unfit(
                f"logprobs_mode {mode}, temperature {self.temperature:g}",
                "its log-probabilities leave out the temperature",
                "start it with --logprobs-mode processed_logprobs, or set temperature: 1.0",
            )

    def _tokens(self, client: httpx.Client) -> Iterator[Diagnostic]:
        """Yield a finding where the server reads a text as other tokens, or has no row for the last one. Also
        where it goes on after a stop token. One without ``/tokenize`` is not asked for its tokens.
        """
        mine = self.needs.tokens()
        if mine:
            request: JsonObject = {"model": self.served, "prompt": _TEXT, "add_special_tokens": False}
            theirs = _json(client.post("/tokenize", json=request)).get("tokens", mine)
            if theirs != mine:
                yield self._unfit(
                    f"its tokens of a text {str(theirs)[:60]}, here {str(mine)[:60]}",
                    "it has another tokenizer",
                    "serve the model that the run starts from",
                )
        last = (self.needs.vocab or 1) - 1
        body: JsonObject = {
            "model": self.served,
            "prompt": [last],
            "temperature": 0.0,
            "logprobs": 1,
            "max_tokens": 1,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = client.post("/v1/completions", json=body, timeout=_SETTINGS_SECONDS)
        written = value_at(_json(answer), "choices.0.token_ids")
        if not isinstance(written, list) or len(written) != 1:
            yield self._unfit(
                f"HTTP {answer.status_code} to a prompt of token {last}: {answer.text[:200]}",
                "it has no answer to the vocabulary's last token",
                "serve the model that the run starts from, by vLLM 0.12 or later",
            )
            return
        stopping = {**body, "max_tokens": 2, "stop_token_ids": written}
        answer = client.post("/v1/completions", json=stopping, timeout=_SETTINGS_SECONDS)
        ended = value_at(_json(answer), "choices.0.token_ids")
        if ended != written:
            yield self._unfit(
                f"token ids {ended} with stop_token_ids {written}",
                "it goes on after a stop token",
                "use vLLM 0.12 or later",
            )


def _json(answer: httpx.Response) -> JsonObject:
    """Return the object that a server answered with; empty for anything else."""
    try:
        return as_object(answer.json() if answer.status_code == 200 else None)
    except ValueError:
        return {}
