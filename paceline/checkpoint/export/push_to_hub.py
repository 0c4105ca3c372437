"""An export as one commit on the Hugging Face hub, with a model card (``checkpoint.export.model_card``).

The token is huggingface_hub's own: HF_TOKEN, or the login of ``hf auth login``; nothing else gets it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import (
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
)  # whichever httpx it has
from huggingface_hub.errors import RepositoryNotFoundError as NoSuchRepository
from huggingface_hub.utils import disable_progress_bars

from paceline.checkpoint import codes
from paceline.checkpoint.export.exporters import Exporters
from paceline.checkpoint.export.hf_export import NO_EXPORTERS, ExportReport, export_hf
from paceline.checkpoint.export.hf_folder import MAX_SHARD_BYTES
from paceline.checkpoint.export.model_card import CARD, HubNames, model_card
from paceline.core.errors import ConfigError
from paceline.core.units import human_bytes

SCHEME = "hf://"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_OF_A_NEW_ONE = frozenset({".gitattributes", CARD})  # files of a repository that holds no model


@dataclass(frozen=True)
class PushReport:
    """The result of a push. ``removed``: files of the repository that the commit deleted."""

    export: ExportReport
    repo: str
    url: str
    private: bool
    removed: tuple[str, ...]


@dataclass(frozen=True)
class _Repository:
    """A repository as it was found; ``head`` is None where there is none yet."""

    head: str | None
    private: bool
    files: tuple[str, ...]


def repo_of(to: str) -> str:
    """Return ``owner/name`` of ``hf://owner/name``. Raises ConfigError."""
    repo = to.removeprefix(SCHEME).strip("/")
    if not to.startswith(SCHEME) or not _REPO.fullmatch(repo):
        raise ConfigError(
            codes.PUSH_PLACE("this names no model repository of the hub", "--to", to, "--to hf://owner/name")
        )
    return repo


def push(
    checkpoint: Path,
    to: str,
    dtype: str = "float32",
    *,
    role: str = "policy",
    merge: bool = False,
    exporters: Exporters = NO_EXPORTERS,
    overwrite: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    verified: bool = False,
    public: bool = False,
    endpoint: str | None = None,
) -> PushReport:
    """Export ``checkpoint`` (as ``export_hf`` does) and commit it to the repository that ``to`` names.

    A new repository is private unless ``public``; one that exists stays as it is. One that holds a model is
    refused unless ``overwrite``; then its files are replaced, and its history keeps them. Errors are found
    before anything is written. Raises ConfigError and CheckpointError.
    """
    repo = repo_of(to)
    if not get_token():
        remedy = "hf auth login, or set HF_TOKEN to a token that may write"
        raise ConfigError(codes.PUSH_TOKEN("nobody is logged in to the Hugging Face hub", to, hint=remedy))
    api = HfApi(endpoint=endpoint)
    with _named(to, "the hub cannot be asked"):
        repository = _look(api, repo)
    held = sorted(set(repository.files) - _OF_A_NEW_ONE)
    if held and not overwrite:
        some = ", ".join(held[:4]) + (" …" if len(held) > 4 else "")
        remedy = "name a new one, or give --overwrite: its files are replaced, and its history keeps them"
        raise ConfigError(codes.PUSH_NOT_EMPTY("this repository is not empty", to, some, remedy))
    with tempfile.TemporaryDirectory(prefix="paceline-push-") as scratch:
        report = export_hf(
            checkpoint,
            Path(scratch) / "model",
            dtype,
            role=role,
            merge=merge,
            exporters=exporters,
            max_shard_bytes=max_shard_bytes,
            verified=verified,
        )
        with _named(to, "the hub cannot be asked"):
            card = model_card(checkpoint, report, repo, _Names(api))
        removed = tuple(sorted(set(held) - set(report.files)))
        print(f"uploading {len(report.files)} files, {human_bytes(report.num_bytes)}, to {repo}", flush=True)
        with _named(to, "the hub has not taken the commit"):
            if repository.head is None:
                api.create_repo(repo, private=not public, exist_ok=False)
            url = _commit(api, repo, repository.head, report, card, removed)
    private = repository.private if repository.head is not None else not public
    return PushReport(report, repo, url, private, removed)


def _look(api: HfApi, repo: str) -> _Repository:
    try:
        info = api.model_info(repo)
    except NoSuchRepository:
        return _Repository(None, True, ())
    return _Repository(info.sha, bool(info.private), tuple(file.rfilename for file in info.siblings or ()))


def _commit(
    api: HfApi, repo: str, head: str | None, report: ExportReport, card: str, removed: Sequence[str]
) -> str:
    """Make the one commit after ``head`` and return its address."""
    disable_progress_bars()  # in a log they would be a line a redraw
    adding = [CommitOperationAdd(name, str(report.path / name)) for name in report.files if name != CARD]
    deleting = [CommitOperationDelete(name) for name in removed]
    done = api.create_commit(
        repo,
        [CommitOperationAdd(CARD, card.encode()), *adding, *deleting],
        commit_message=f"paceline: step {report.step}, {report.kind}",
        parent_commit=head,  # refused if somebody else has committed since
    )
    return str(done.commit_url)


class _Names(HubNames):
    """Asks the hub whether names exist."""

    def __init__(self, api: HfApi) -> None:
        self._api = api

    def has(self, name: str, kind: str) -> bool:
        """Whether the hub has a repository of this name and kind (``model`` or ``dataset``)."""
        return bool(_REPO.fullmatch(name)) and self._api.repo_exists(name, repo_type=kind)


@contextmanager
def _named(to: str, failed: str) -> Iterator[None]:
    """Turn the hub's errors into ConfigError."""
    try:
        yield
    except HFValidationError as error:
        raise ConfigError(codes.PUSH_PLACE("the hub has no such names", to, str(error)[:300])) from error
    except OfflineModeIsEnabled as error:
        raise ConfigError(
            codes.PUSH_HUB(failed, to, "offline mode is set", "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE")
        ) from error
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            codes.PUSH_HUB(
                failed,
                to,
                _words(error),
                "nothing was committed; check that the token may write there (hf auth whoami), and try again",
            )
        ) from error


def _words(error: BaseException) -> str:
    """Return the message of an error and of its causes, on one line."""
    texts = [" ".join(str(cause).split()) for cause in (error, error.__cause__) if cause is not None]
    return ": ".join(texts)[:300]
