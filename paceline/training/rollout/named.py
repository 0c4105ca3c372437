"""Checks without torch of what a rollout names: the reward model's folder, a server's key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import read_text
from paceline.training import codes

_REWARDS = "training.rollout.rewards"


def check_reward_folder(folder: Path) -> Iterator[Diagnostic]:
    """Yield ``rewards.model`` unless the folder's config.json has one label.

    An unreadable file is reported elsewhere, as a damaged model.
    """
    try:
        config = json.loads(read_text(folder / "config.json"))
        # Transformers writes the labels' names, and leaves out its default of two
        labels = len(config["id2label"]) if config.get("id2label") else int(config.get("num_labels") or 2)
        found = gives_no_number(str(folder), config.get("architectures") or (), labels)
    except (OSError, ValueError, TypeError, AttributeError):
        return
    if found is not None:
        yield found


def gives_no_number(name: str, architectures: Sequence[str], labels: int) -> Diagnostic | None:
    """Return ``rewards.model`` unless the model is a sequence classifier with one label."""
    if labels == 1 and any(kind.endswith("ForSequenceClassification") for kind in architectures):
        return None
    found = f"{name}: {', '.join(architectures) or 'no architecture'}, {labels} labels"
    hint = (
        "use a model trained with algorithm: reward and exported, or any"
        " AutoModelForSequenceClassification with one label"
    )
    return codes.REWARDS_MODEL("this model does not return a single number", _REWARDS, found, hint)


def missing_key(name: str | None, environ: Mapping[str, str]) -> Diagnostic | None:
    """Return ``rollout.server_no_key`` if the environment variable ``name`` is not set."""
    if name is None or environ.get(name):
        return None
    what, hint = "the environment variable with the server's key is not set", f"export {name}=… on every node"
    return codes.ROLLOUT_SERVER_NO_KEY(what, "training.rollout.server.api_key_env", name, hint)
