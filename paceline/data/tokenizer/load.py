"""Load the tokenizer from a folder or the hub, add tokens, set the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.files import is_local_name
from paceline.core.security.remote_code import check_code
from paceline.data import codes
from paceline.data.chat_template.options import set_template
from paceline.data.chat_template.template_texts import template_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.config.sections.model import ModelSection

_FILES = (
    "tokenizer*",
    "vocab*",
    "merges*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "additional_chat_templates/*.jinja",
    "*.model",
    "*.tiktoken",
    "config.json",
)
_BESIDE = ("*processor_config.json", "LICENSE*", "NOTICE*", "USE_POLICY*")  # what exports keep of a model


def tokenizer_folder(model: ModelSection) -> Path:
    """Return the local folder with the tokenizer's files, downloading a hub name if needed.

    Raises DataError.
    """
    name = model.tokenizer or model.name_or_path
    if not name:
        raise DataError(
            codes.DATA_NO_TOKENIZER(
                "no tokenizer is given",
                "model.tokenizer",
                "a model created from scratch (model.config) has no tokenizer of its own",
                "set model.tokenizer to a folder or a name on the hub",
            )
        )
    local = Path(name).expanduser()
    if local.is_dir() and not tokenizer_files(local):
        raise DataError(
            codes.DATA_NO_TOKENIZER(
                "the folder contains no tokenizer",
                str(local),
                ", ".join(sorted(p.name for p in local.iterdir())[:8]) or "nothing",
                "set model.tokenizer to a folder with tokenizer.json",
            )
        )
    if local.is_dir():
        return local
    if is_local_name(name) or local.exists():
        raise DataError(_not_found(name, "there is no such folder", model))
    return _download(name, model)


def tokenizer_here(model: ModelSection) -> Path | None:
    """Return the tokenizer's local folder; None if it would be downloaded, or is missing."""
    folder = Path(model.tokenizer or model.name_or_path or "/nowhere").expanduser()
    return folder if folder.is_dir() and tokenizer_files(folder) else None


def _download(name: str, model: ModelSection) -> Path:
    from huggingface_hub import snapshot_download

    # Code is fetched only where it may run
    patterns = [*_FILES, *_BESIDE, "*.py"] if model.trust_remote_code else [*_FILES, *_BESIDE]
    # A pinned commit is of the model's repository, not of another one's.
    revision = model.revision if name == model.name_or_path else None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as exc:  # noqa: BLE001  (network, authentication and hub errors)
        message = str(exc).split("\n")[0][:300]
        why = f"it is not a folder here and could not be loaded from the hub: {type(exc).__name__}: {message}"
        raise DataError(_not_found(name, why, model)) from exc


def _not_found(name: str, reason: str, model: ModelSection) -> Diagnostic:
    """Return the error at the key that names it; a model's own tokenizer is missing along with the model."""
    if model.tokenizer:
        return codes.DATA_NO_TOKENIZER(
            f"there is no tokenizer '{name}'",
            "model.tokenizer",
            reason,
            "set model.tokenizer to a folder with tokenizer.json, or a name on the hub with network access",
        )
    return codes.MODEL_NOT_FOUND(
        "model.name_or_path",
        reason,
        name=name,
        hint="set model.name_or_path to a folder with config.json, weights and tokenizer, or a name on"
        " the hub with network access",
    )


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files in a folder that affect tokenization, sorted."""
    patterns = [p for p in _FILES if p != "config.json"]
    return sorted({f for pattern in patterns for f in folder.glob(pattern) if f.is_file()})


@dataclass(frozen=True)
class TokenizerSpec:
    """Everything that affects tokenization, small enough for worker processes.

    ``chat_template`` is Jinja text; ``template_options``: its options, as a JSON object.
    """

    folder: str
    add_tokens: tuple[str, ...] = ()
    add_special_tokens: tuple[str, ...] = ()
    special_tokens: tuple[tuple[str, str], ...] = ()
    chat_template: str | None = None
    template_options: str = "{}"
    code_revision: str | None = None  # pins the tokenizer's remote code; None: remote code is off


def tokenizer_spec(model: ModelSection) -> TokenizerSpec:
    """Return the spec of what ``load_tokenizer`` would load. Raises DataError if files are missing."""
    folder, template = tokenizer_folder(model), template_text(model.chat_template)
    # the pinned repository
    trusted = model.trust_remote_code and model.tokenizer in (None, model.name_or_path)
    if trusted:
        check_code(model.name_or_path or "", model.revision)
    revision = model.revision if trusted else None
    options = json.dumps(model.chat_template_kwargs, sort_keys=True)
    return TokenizerSpec(
        str(folder),
        tuple(model.add_tokens),
        tuple(model.add_special_tokens),
        tuple(sorted(model.special_tokens.items())),
        template,
        options,
        revision,
    )


def load_tokenizer(model: ModelSection) -> PreTrainedTokenizerBase:
    """Load the tokenizer as training uses it. Raises DataError.

    ``special_tokens`` take the place of its own; ``add_tokens`` and ``add_special_tokens`` are added.
    ``chat_template`` (a built-in name, a path, or Jinja text) replaces its own.
    """
    return open_tokenizer(tokenizer_spec(model))


def open_tokenizer(spec: TokenizerSpec) -> PreTrainedTokenizerBase:
    """Like ``load_tokenizer``, for local files."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            spec.folder, trust_remote_code=spec.code_revision is not None, code_revision=spec.code_revision
        )
    except Exception as exc:  # noqa: BLE001  (damaged files raise many types)
        message = str(exc).split("\n")[0][:300]
        raise DataError(
            codes.DATA_BAD_TOKENIZER(
                "the tokenizer cannot be loaded",
                spec.folder,
                f"{type(exc).__name__}: {message}",
                "set model.tokenizer to a folder that AutoTokenizer.from_pretrained can load; its own"
                " Python code runs only from the folder or commit that model.revision pins",
            )
        ) from exc
    if spec.special_tokens:
        _name_special(tokenizer, dict(spec.special_tokens))
    if spec.add_tokens:
        tokenizer.add_tokens(list(spec.add_tokens))
    if spec.add_special_tokens:
        tokenizer.add_tokens(list(spec.add_special_tokens), special_tokens=True)
    set_template(tokenizer, spec.chat_template, spec.template_options)
    return tokenizer


def _name_special(tokenizer: PreTrainedTokenizerBase, tokens: Mapping[str, str]) -> None:
    """Set the tokenizer's special tokens; tokens that it adds around texts change too, if its class supports
    that."""
    from transformers import AddedToken

    for name, text in tokens.items():
        token = AddedToken(text, lstrip=False, rstrip=False, normalized=False, special=True)
        tokenizer.add_special_tokens({name: token})
    update = getattr(tokenizer, "update_post_processor", None)
    if update is not None and tokens.keys() & {"bos_token", "eos_token"}:
        update()


def vocab_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the rows that the embedding needs: the largest token id + 1."""
    return max(len(tokenizer), max(tokenizer.get_vocab().values(), default=-1) + 1)


def pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return a token for filler rows, which have no loss: pad, else end of text, else 0."""
    return int(tokenizer.eos_token_id or 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id)
