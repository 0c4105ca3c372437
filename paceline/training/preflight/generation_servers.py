"""Check before the start that the generation servers fit the run. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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


def missing_key(name: str | None, environ: Mapping[str, str]) -> Diagnostic | None:
    """Return ``rollout.server_no_key`` if the environment variable ``name`` is not set."""
    if name is None or environ.get(name):
        return None
    return codes.ROLLOUT_SERVER_NO_KEY("training.rollout.server.api_key_env", name, name=name)


def check_servers(
    options: RolloutOptions, max_length: int, environ: Mapping[str, str], policy: SentPolicy | None = None
) -> Iterator[Diagnostic]:
    """Yield each server's problems: address, key, model, length, weights, log-probabilities. Also yield the
    way by which all of them get the weights of ``policy``.

    One that does not answer is a warning: it may start later. ``max_length``: tokens of prompt and answer.
    """
    where = "training.rollout.servers" if options.servers else "training.rollout.server"
    replies: dict[str, JsonObject] = {}
    for server in options.all_servers:
        yield from _Server(server, options.temperature, max_length, where, replies).check(environ)
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
            "the judge's server does not answer yet",
            "training.rollout.rewards",
            f"{url}: {type(error).__name__}: {error}",
            "start it before the run, or correct the url",
            Severity.WARNING,
        )


@dataclass
class _Server:
    """One server; ``where``: the key that names it; ``replies``: its ``/server_info``, by URL."""

    options: ServerOptions
    temperature: float
    max_length: int
    where: str
    replies: dict[str, JsonObject]

    @property
    def url(self) -> str:
        return self.options.url.rstrip("/")

    def check(self, environ: Mapping[str, str]) -> Iterator[Diagnostic]:
        """Yield the findings."""
        missing = missing_key(self.options.api_key_env, environ)
        if missing is not None:
            yield replace(missing, where=self.where, found=f"api_key_env: {missing.found}")
            return
        import httpx

        key = environ.get(self.options.api_key_env or "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            # a proxy of the environment would see the key
            with httpx.Client(trust_env=False, timeout=_SECONDS, headers=headers) as client:
                models = client.get(f"{self.url}/v1/models")
                settings = client.get(f"{self.url}/server_info", params={"config_format": "json"})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reply = f"{self.url}/v1/models: {type(error).__name__}: {error}"
            hint = "start it before the run, or correct the url"
            yield generation_codes.ROLLOUT_SERVER_UNREACHABLE(
                "the generation server does not answer yet", self.where, reply, hint, Severity.WARNING
            )
            return
        yield from self._models(models)
        if models.status_code == httpx.codes.OK:
            yield from self._settings(settings)

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
        longest = models[wanted].get("max_model_len")
        if isinstance(longest, int) and longest < self.max_length:
            yield codes.ROLLOUT_SERVER_UNFIT(
                self.where,
                f"{self.url}: max_model_len {longest}, data.max_length {self.max_length}",
                why="it takes shorter texts than the run's",
                remedy=f"start it with --max-model-len {self.max_length}, or set data.max_length: {longest}",
            )

    def _settings(self, answer: httpx.Response) -> Iterator[Diagnostic]:
        """Yield a finding if the server cannot load weights, or returns other log-probabilities."""
        if answer.status_code != 200:
            yield codes.ROLLOUT_SERVER_UNFIT(
                self.where,
                f"{self.url}/server_info: HTTP {answer.status_code}",
                why="it takes no new weights",
                remedy="start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment",
            )
            return
        self.replies[self.url] = _json(answer)
        mode = value_at(_json(answer), "vllm_config.model_config.logprobs_mode")
        if isinstance(mode, str) and mode.startswith("raw") and self.temperature not in (0.0, 1.0):
            yield codes.ROLLOUT_SERVER_UNFIT(
                self.where,
                f"{self.url}: logprobs_mode {mode}, temperature {self.temperature:g}",
                why="its log-probabilities leave out the temperature",
                remedy="start it with --logprobs-mode processed_logprobs, or set temperature: 1.0",
            )


def _json(answer: httpx.Response) -> JsonObject:
    """Return the object that a server answered with; empty for anything else."""
    try:
        return as_object(answer.json() if answer.status_code == 200 else None)
    except ValueError:
        return {}
