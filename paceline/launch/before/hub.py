"""Names on the Hugging Face hub: downloads that offline mode forbids, and revisions of local models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.launch import codes
from paceline.rules import codes as rules_codes

if TYPE_CHECKING:
    from paceline.config.schema import Config

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_ROWS = (".json", ".jsonl", ".ndjson", ".parquet", ".csv", ".txt")


def hub_findings(config: Config, known: bool, environ: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Yield warnings (a plan can be made without the files).

    ``known``: the model's config.json is on this machine.
    """
    m, off = config.model, [k for k in _OFFLINE if environ.get(k, "").lower() in ("1", "true", "yes", "on")]
    name = None if m.config is not None else m.name_or_path
    here = name is None or Path(name).expanduser().exists()
    # A revision has no effect on a local model.
    if m.revision and here and not m.trust_remote_code:
        what = (
            "the model is "
            + ("created from scratch" if name is None else "a folder")
            + ", but a revision applies to the hub only and has no effect"
        )
        yield codes.MODEL_REVISION_UNREAD(
            what, "model.revision", m.revision, "remove it, or name the model on the hub", Severity.WARNING
        )
    # The rest is about offline mode: model, tokenizer and data sets that are not cached.
    if not off:
        return
    if name and not known and not here:
        yield _offline(rules_codes.MODEL_OFFLINE, "the model", "model.name_or_path", name, off[0])
    home = Path(environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    cache = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    if (
        m.tokenizer
        and _of_hub(m.tokenizer, owned=False)
        and not (cache / f"models--{m.tokenizer.replace('/', '--')}").is_dir()
    ):
        yield _offline(codes.DATA_OFFLINE, "the tokenizer", "model.tokenizer", m.tokenizer, off[0])
    kept = Path(environ.get("HF_DATASETS_CACHE") or home / "datasets")
    for key, sections in (("data.train", config.data.train), ("data.eval", config.data.eval or ())):
        for path in dict.fromkeys(section.path for section in sections):
            if _of_hub(path) and not (kept / path.replace("/", "___")).is_dir():
                yield _offline(codes.DATA_OFFLINE, "the data set", key, path, off[0])


def _of_hub(name: str, *, owned: bool = True) -> bool:
    """Whether ``name`` has the form ``owner/name`` and is not a path on this machine. ``owned`` False: a name
    alone is one, too, as ``gpt2``.
    """
    one = r"[A-Za-z0-9][\w.-]*"
    plain = re.fullmatch(f"{one}/{one}" if owned else f"({one}/)?{one}", name) is not None
    return plain and Path(name).suffix.lower() not in _ROWS and not Path(name).exists()


def _offline(code: Code, which: str, key: str, name: str, variable: str) -> Diagnostic:
    what = f"{which} is not on this machine, and {variable} is set, so nothing is downloaded"
    return code(
        what, key, name, f"run hf download {name} with network access, or name a folder", Severity.WARNING
    )
