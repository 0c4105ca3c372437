"""The tokenizer: loaded from a folder or the hub, tokens added, the chat template settled."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.remote_code import check_code
from paceline.data import codes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.config.sections.model import ModelSection

BUILTIN_TEMPLATES = ("chatml", "llama3", "alpaca", "plain")
_FILES = (
    "tokenizer*",
    "vocab*",
    "merges*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "*.model",
    "*.tiktoken",
    "config.json",
)


def tokenizer_folder(model: ModelSection) -> Path:
    """The local folder with the tokenizer's files; for a hub name they are downloaded (or taken from the hub's cache). Raises DataError."""
    name = model.tokenizer or model.name_or_path
    if not name:
        raise DataError(
            codes.DATA_NO_TOKENIZER(
                "no tokenizer is named",
                "model.tokenizer",
                "a model made from scratch (model.config) has none of its own",
                "model.tokenizer: a folder or a name on the hub",
            )
        )
    local = Path(name).expanduser()
    if local.is_dir():
        if not tokenizer_files(local):
            inside = ", ".join(sorted(p.name for p in local.iterdir())[:8]) or "nothing"
            raise DataError(
                codes.DATA_NO_TOKENIZER(
                    "the folder holds no tokenizer", str(local), inside, "model.tokenizer: a folder with tokenizer.json"
                )
            )
        return local
    if name.startswith(("/", ".", "~")) or name.count("/") > 1 or local.exists():
        raise DataError(_not_found(name, "there is no such folder", model))
    return _download(name, model)


def tokenizer_here(model: ModelSection) -> Path | None:
    """The folder with the tokenizer's files, where one is named and lies here; None where it would be downloaded, or is missing."""
    folder = Path(model.tokenizer or model.name_or_path or "/nowhere").expanduser()
    return folder if folder.is_dir() and tokenizer_files(folder) else None


def _download(name: str, model: ModelSection) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [*_FILES, "*.py"] if model.trust_remote_code else list(_FILES)
    revision = model.revision if name == model.name_or_path else None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as exc:  # noqa: BLE001  (network, authentication and hub errors alike: the tokenizer cannot be had)
        message = str(exc).split("\n")[0][:300]
        why = f"it is no folder here and could not be loaded from the hub: {type(exc).__name__}: {message}"
        raise DataError(_not_found(name, why, model)) from exc


def _not_found(name: str, found: str, model: ModelSection) -> Diagnostic:
    """The key that named it: a model's own tokenizer is missing with the model."""
    if model.tokenizer:
        hint = "model.tokenizer: a folder with tokenizer.json, or a name on the hub with the network on"
        return codes.DATA_NO_TOKENIZER(f"there is no tokenizer '{name}'", "model.tokenizer", found, hint)
    hint = "model.name_or_path: a folder with config.json, its weights and its tokenizer, or a name on the hub with the network on"
    return codes.MODEL_NOT_FOUND(f"there is no model '{name}'", "model.name_or_path", found, hint)


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of a folder that decide how text becomes tokens, sorted."""
    patterns = [p for p in _FILES if p != "config.json"]
    return sorted({f for pattern in patterns for f in folder.glob(pattern) if f.is_file()})


@dataclass(frozen=True)
class TokenizerSpec:
    """Everything that decides how text becomes tokens, small enough to send to a worker process. ``chat_template`` is Jinja text."""

    folder: str
    add_tokens: tuple[str, ...] = ()
    add_special_tokens: tuple[str, ...] = ()
    chat_template: str | None = None
    code_revision: str | None = None  # what pins the tokenizer's own code; None: it runs none


def tokenizer_spec(model: ModelSection) -> TokenizerSpec:
    """What ``load_tokenizer`` would load. Raises DataError when the files are not there."""
    folder, template = tokenizer_folder(model), template_text(model.chat_template)
    trusted = model.trust_remote_code and model.tokenizer in (None, model.name_or_path)  # what the pin is of
    if trusted:
        check_code(model.name_or_path or "", model.revision)
    revision = model.revision if trusted else None
    return TokenizerSpec(str(folder), tuple(model.add_tokens), tuple(model.add_special_tokens), template, revision)


def load_tokenizer(model: ModelSection) -> PreTrainedTokenizerBase:
    """The tokenizer as training uses it.

    ``add_tokens`` and ``add_special_tokens`` are added, ``chat_template`` (a built-in name, a path, or Jinja text) replaces its own, and a
    missing pad token is the end-of-text token (rows are never padded; it only names a filler). Raises DataError.
    """
    return open_tokenizer(tokenizer_spec(model))


def open_tokenizer(spec: TokenizerSpec) -> PreTrainedTokenizerBase:
    """``load_tokenizer`` for files that are already here."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            spec.folder, trust_remote_code=spec.code_revision is not None, code_revision=spec.code_revision
        )
    except Exception as exc:  # noqa: BLE001  (broken files raise many kinds)
        message = str(exc).split("\n")[0][:300]
        hint = "model.tokenizer: a folder that AutoTokenizer.from_pretrained loads; its own Python runs only from the folder or commit that model.revision pins"
        raise DataError(
            codes.DATA_BAD_TOKENIZER(
                "the tokenizer cannot be loaded", spec.folder, f"{type(exc).__name__}: {message}", hint
            )
        ) from exc
    if spec.add_tokens:
        tokenizer.add_tokens(list(spec.add_tokens))
    if spec.add_special_tokens:
        tokenizer.add_tokens(list(spec.add_special_tokens), special_tokens=True)
    if spec.chat_template is not None:
        tokenizer.chat_template = spec.chat_template
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def builtin_template(name: str) -> str:
    """The Jinja text of a template of BUILTIN_TEMPLATES."""
    return (Path(__file__).parent / "templates" / f"{name}.jinja").read_text("utf-8").rstrip("\n")


def template_text(value: str | None) -> str | None:
    """Jinja text from ``model.chat_template``: a built-in name, a path, or the text itself. Raises DataError for a name that is none of these."""
    if value is None:
        return None
    if value in BUILTIN_TEMPLATES:
        return builtin_template(value)
    if "{{" in value or "{%" in value:
        return value
    path = Path(value).expanduser()
    if os.path.isfile(path):  # a text without Jinja may be longer than any name
        return path.read_text("utf-8")
    hint = f"one of {', '.join(BUILTIN_TEMPLATES)}, the path of a .jinja file, or the template itself"
    raise DataError(
        codes.DATA_BAD_CHAT_TEMPLATE(
            "the chat template is no built-in name, no file and no Jinja text", "model.chat_template", value, hint
        )
    )


def vocab_size(tokenizer: Any) -> int:
    """Rows that the embedding needs: one more than the largest token id."""
    return max(len(tokenizer), max(tokenizer.get_vocab().values(), default=-1) + 1)


def pad_token_id(tokenizer: Any) -> int:
    """A token for filler rows: pad, else end of text, else 0. It is never learnt."""
    for candidate in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if candidate is not None:
            return int(candidate)
    return 0
