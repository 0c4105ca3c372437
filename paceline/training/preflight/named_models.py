"""Checks of the models that a run names besides its own: teacher, reward model. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer
from paceline.training import codes


def other_tokens(name: str, tokenizer: Path) -> str:
    """Return how the tokens of ``name`` differ from those of ``tokenizer``; empty if they do not.

    ``name`` is a folder or a cached hub model. Raises DataError if it has no tokenizer.
    """
    mine, theirs = (_tokens(folder) for folder in (str(tokenizer), name))
    different = sorted(set(mine.items()) ^ set(theirs.items()))
    return f"{name}: {len(different)} tokens differ, first {json.dumps(different[0][0])}" if different else ""


def check_tokens(name: str, tokenizer: Path, where: str, role: str, *, whole: bool) -> None:
    """Raise ConfigError unless each token id of ``name``, the model of ``role``, stands for the same text as
    in this run's tokenizer.

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
    """Whether a model may have a tokenizer: a hub name, or a folder with a tokenizer's files."""
    folder = Path(name).expanduser()
    return not folder.is_dir() or any(folder.glob("tokenizer*"))


def _tokens(name: str) -> dict[str, int]:
    """Token -> id."""
    return open_tokenizer(TokenizerSpec(name)).get_vocab()


_REWARDS = "training.rollout.rewards"


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
