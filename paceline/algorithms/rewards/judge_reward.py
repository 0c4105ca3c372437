"""A reward that asks a model behind an OpenAI-compatible server, and takes the last number of its reply: 7 of
"7/10".
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx

from paceline.algorithms import codes
from paceline.algorithms.rewards.builtin import Sample
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_number, as_object, value_at
from paceline.runtime.process_group.world import environment

_FIELD = re.compile(r"\{(prompt|completion|answer)\}")
#: A number; what it is out of (7/10, 7 out of 10, [[7]] of 10) belongs to it
_NUMBER = re.compile(
    r"(?<![\w.])(-?\d*\.?\d+)(?:[\]*}]*\s*(?:/|(?:out )?of\b)\s*[\[*]*\d+(?:\.\d+)?)?", re.IGNORECASE
)
_THOUGHTS = re.compile(r".*</think>", re.DOTALL)
_AGAIN = frozenset({429, 502, 503, 504})  # busy or starting
_PAUSE_SECONDS = 0.5
PROMPT = (
    "Judge an answer to a question. Reply with one number from 0 (wrong or useless) to 10 (right and"
    " helpful), and nothing else.\n\nQuestion:\n{prompt}\n\nAnswer:\n{completion}"
)


@dataclass(kw_only=True, eq=False, repr=False)
class JudgeReward:
    """Scores each answer by one request, ``concurrency`` of them at a time.

        url          ``http://host:port`` or with a path before ``/chat/completions``
        model        its name there
        prompt       the message to the judge; {prompt}, {completion} and {answer} are filled in
        api_key_env  the environment variable with the key, sent as a bearer token
        timeout      seconds for one judgement, retries included
        max_tokens   of one reply
        budget       total tokens that this process's judgements may use; no limit when empty

    A failed judgement returns its reason instead of a number; ``on_reward_error`` then applies.
    Raises ConfigError ``rewards.options`` for invalid options.
    """

    has_deadlines = True

    url: str
    model: str
    prompt: str = PROMPT
    api_key_env: str | None = None
    concurrency: int = 8
    timeout: float = 60.0
    max_tokens: int = 256
    budget: int | None = None
    used: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Check the options, and open the connections."""
        key = environment().get(self.api_key_env or "")
        numbers = (self.concurrency, self.timeout, self.max_tokens, self.budget)
        if why := _wrong(self.url, self.prompt, self.api_key_env, key, numbers):
            what = f"the reward 'judge' {why}"
            raise ConfigError(codes.REWARDS_OPTIONS(what, "training.rollout.rewards", hint=_HINT))
        base = self.url.rstrip("/")
        self.url = (
            f"{base}/chat/completions" if base.rsplit("/", 1)[-1] == "v1" else f"{base}/v1/chat/completions"
        )
        self.timeout, self._lock = float(self.timeout), threading.Lock()
        # no proxy of the environment: it would see the key
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {}, trust_env=False, timeout=self.timeout
        )

    def __call__(self, samples: Sequence[Sample]) -> list[float | str]:
        """Return a number for each sample, or why there is none."""
        with ThreadPoolExecutor(max(1, min(self.concurrency, len(samples)))) as pool:
            return list(pool.map(self._score, samples))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _score(self, sample: Sample) -> float | str:
        if self.budget is not None and self.used >= self.budget:
            return f"no score: the budget of {self.budget} tokens is used up"
        expected = sample.columns.get("answer", "") if sample.expected is None else sample.expected
        fields = {"prompt": sample.prompt, "completion": sample.completion, "answer": str(expected)}
        message = _FIELD.sub(lambda match: fields[match[1]], self.prompt)
        body: JsonObject = {
            "model": self.model,
            "messages": [{"role": "user", "content": message}],
            "temperature": 0.0,
            "max_tokens": self.max_tokens,
        }
        reply = self._reply(body)
        if isinstance(reply, str):
            return f"no score: {reply}"
        text = _THOUGHTS.sub("", str(value_at(reply, "choices.0.message.content") or ""))
        numbers = _NUMBER.findall(text)
        return float(numbers[-1]) if numbers else f"no score: no number in the reply {text[:80]!r}"

    def _reply(self, body: JsonObject) -> JsonObject | str:
        """Return the server's answer, or why there is none."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                answer = self._client.post(
                    self.url, json=body, timeout=max(0.001, deadline - time.monotonic())
                )
                if answer.status_code == httpx.codes.OK:
                    return self._counted(as_object(answer.json()))
                why = f"HTTP {answer.status_code}: {' '.join(answer.text.split())[:100]}"
                again = answer.status_code in _AGAIN
            except httpx.TransportError as error:
                why, again = f"{type(error).__name__}: {error}", not isinstance(error, httpx.TimeoutException)
            except ValueError:
                return "no JSON"
            if not again or deadline - time.monotonic() <= _PAUSE_SECONDS:
                return f"{self.url}: {why}"
            time.sleep(_PAUSE_SECONDS)

    def _counted(self, reply: JsonObject) -> JsonObject:
        used = value_at(reply, "usage.total_tokens")
        with self._lock:
            self.used += int(as_number(used)) if isinstance(used, int) else self.max_tokens
        return reply


_HINT = "{name: judge, options: {url: http://127.0.0.1:8000, model: NAME, api_key_env: VARIABLE}}"


def _wrong(url: Json, prompt: Json, name: str | None, key: str | None, numbers: Sequence[Json]) -> str:
    """Return what is wrong with the options; empty if nothing is."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")) or "@" in url:
        return "needs url: scheme, host and port, without a key"
    if not isinstance(prompt, str) or "{completion}" not in prompt:
        return "needs {completion} in its prompt"
    if name is not None and not key:
        return f"names the environment variable {name}, which is not set"
    if any(
        value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0)
        for value in numbers
    ):
        return "needs numbers above 0 for concurrency, timeout, max_tokens and budget"
    return ""
