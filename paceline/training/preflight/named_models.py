"""Checks of what a run names besides its model: teacher, reward model, generation server. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.config.sections.rollout import ServerOptions
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer
from paceline.generation import codes as generation_codes
from paceline.training import codes


def other_tokens(name: str, tokenizer: Path) -> str:
    """Return how the tokens of ``name`` differ from those of ``tokenizer``; empty if they do not.

    ``name`` is a folder or a cached hub model. Raises DataError if it has no tokenizer.
    """
    mine, theirs = (_tokens(folder) for folder in (str(tokenizer), name))
    different = sorted(set(mine.items()) ^ set(theirs.items()))
    return f"{name}: {len(different)} tokens differ, first {json.dumps(different[0][0])}" if different else ""


def check_tokens(name: str, tokenizer: Path, where: str, role: str, *, whole: bool) -> None:
    """Raise ConfigError unless a token id that ``name``, the model of a role, knows is the same text to it.

    ``whole``: the vocabularies must be equal, as for distributions over them.
    """
    mine, theirs = (_tokens(folder) for folder in (str(tokenizer), name))
    by_id = {number: token for token, number in theirs.items()}
    if whole:
        difference = other_tokens(name, tokenizer)
    else:
        other = sorted(token for token, number in mine.items() if by_id.get(number, token) != token)
        difference = f"{name}: {len(other)} tokens differ, first {json.dumps(other[0])}" if other else ""
    if difference:
        added = "and no tokens added" if whole else "tokens added behind the others are no difference"
        raise ConfigError(codes.ALGORITHM_TEACHER_TOKENS(where, difference, role=role, added=added))


def has_tokenizer(name: str) -> bool:
    """Whether a model can be asked for its tokens: a hub name, or a folder with a tokenizer's files."""
    folder = Path(name).expanduser()
    return not folder.is_dir() or any(folder.glob("tokenizer*"))


def _tokens(name: str) -> dict[str, int]:
    """Token -> id."""
    return open_tokenizer(TokenizerSpec(name)).get_vocab()


_REWARDS = "training.rollout.rewards"
_SERVER = "training.rollout.server"
_SECONDS = 5.0  # for one answer that costs a server nothing


def check_reward_folder(folder: Path) -> Iterator[Diagnostic]:
    """Yield ``rewards.model`` unless the folder's config.json has one label.

    An unreadable file is reported elsewhere, as a damaged model.
    """
    try:
        config = json.loads(read_text(folder / "config.json"))
        # Transformers writes the labels' names, and leaves out its default of two
        labels = len(config["id2label"]) if config.get("id2label") else int(config.get("num_labels") or 2)
        finding = gives_no_number(str(folder), config.get("architectures") or (), labels)
    except (OSError, ValueError, TypeError, AttributeError):
        return
    if finding is not None:
        yield finding


def gives_no_number(name: str, architectures: Sequence[str], labels: int) -> Diagnostic | None:
    """Return ``rewards.model`` unless the model is a sequence classifier with one label."""
    if labels == 1 and any(kind.endswith("ForSequenceClassification") for kind in architectures):
        return None
    return codes.REWARDS_MODEL(
        "this model does not return a single number",
        _REWARDS,
        f"{name}: {', '.join(architectures) or 'no architecture'}, {labels} labels",
        "use a model trained with algorithm: reward and exported, or any"
        " AutoModelForSequenceClassification with one label",
    )


def missing_key(name: str | None, environ: Mapping[str, str]) -> Diagnostic | None:
    """Return ``rollout.server_no_key`` if the environment variable ``name`` is not set."""
    if name is None or environ.get(name):
        return None
    return codes.ROLLOUT_SERVER_NO_KEY("training.rollout.server.api_key_env", name, name=name)


def check_server(server: ServerOptions, environ: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Ask the server for its models. Warn if it does not answer (it may start later). Refuse if it refuses,
    or does not serve the model.
    """
    missing = missing_key(server.api_key_env, environ)
    if missing is not None:
        yield replace(missing, where=_SERVER, found=f"api_key_env: {missing.found}")
        return
    import httpx

    key = environ.get(server.api_key_env or "")
    address = f"{server.url.rstrip('/')}/v1/models"
    try:
        # a proxy of the environment would see the key
        with httpx.Client(trust_env=False, timeout=_SECONDS) as client:
            answer = client.get(address, headers={"Authorization": f"Bearer {key}"} if key else {})
        served = answer.json().get("data") if answer.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reply, hint = (
            f"{address}: {type(error).__name__}: {error}",
            "start it before the run, or correct the url",
        )
        yield generation_codes.ROLLOUT_SERVER_UNREACHABLE(
            "the generation server does not answer yet", _SERVER, reply, hint, Severity.WARNING
        )
        return
    except (ValueError, AttributeError):
        served = None
    names = [model.get("id") for model in served or () if isinstance(model, dict)]
    if not isinstance(served, list):
        reply, hint = (
            f"{address}: HTTP {answer.status_code}",
            "correct the url, or the key behind api_key_env",
        )
        yield generation_codes.ROLLOUT_SERVER_STATUS(
            "the generation server does not list its models", _SERVER, reply, hint
        )
    elif (server.model not in names) if server.model else len(names) != 1:
        reply = f"it serves {', '.join(map(str, names)) or 'none'}; model: {server.model or '(not set)'}"
        yield generation_codes.ROLLOUT_SERVER_ANSWER(
            "the generation server does not serve the model", _SERVER, reply, f"{_SERVER}.model: NAME"
        )


def check_reward_model(name: str, tokenizer: Path) -> None:
    """Raise ConfigError unless ``name`` has one output and the tokens of ``tokenizer``.

    ``name`` is a folder or a cached hub model.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        message = str(error).split("\n")[0]
        hint = "use the folder written by `paceline export` after algorithm: reward"
        if (Path(name) / "adapter_config.json").is_file():
            hint = "export it as a complete model: paceline export RUN --to FOLDER --merge"
        what = "the reward model cannot be loaded"
        raise ConfigError(codes.REWARDS_MODEL(what, _REWARDS, f"{name}: {message}", hint)) from error
    if wrong := gives_no_number(name, config.architectures or (), config.num_labels):
        raise ConfigError(wrong)
    if difference := other_tokens(name, tokenizer):
        what = "the reward model and the policy have different tokens, so it would read a different text"
        hint = "use a reward model trained from the same base model, with the same tokenizer"
        raise ConfigError(codes.REWARDS_TOKENIZER(what, _REWARDS, difference, hint))
