"""The key of a prepared set: whatever changes its tokens changes the key."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.data.locate import Located
from paceline.data.tokenizer import TokenizerSpec, tokenizer_files

FORMAT_VERSION = 3
_CODE = (
    "formats",
    "pairs",
    "prompts",
    "locate",
    "problems",
    "readers",
    "table",
    "template",
    "tokenise",
    "tokenizer",
    "split",
    "hashing",
)
_BLOCK_BYTES = 1 << 22
_SETTLED_SECONDS = 2.0  # a file changed this shortly before it was hashed may change again within the clock's grain


def fingerprint(parts: Mapping[str, Any]) -> str:
    """40 hex digits of canonical JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:40]


def code_version() -> dict[str, Any]:
    """Whatever of the program decides the tokens: our own source and the libraries' versions."""
    own = hashlib.sha256()
    for name in _CODE:
        own.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return {
        "format": FORMAT_VERSION,
        "source": own.hexdigest()[:16],
        **{name: _version(name) for name in ("transformers", "tokenizers")},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def tokenizer_digest(spec: TokenizerSpec, cache_dir: Path) -> dict[str, Any]:
    """Content of the tokenizer's files, added tokens and chat template."""
    folder = Path(spec.folder)
    digests = digest_files(tokenizer_files(folder), cache_dir)
    added = [list(spec.add_tokens), list(spec.add_special_tokens)]
    template = hashlib.sha256(spec.chat_template.encode()).hexdigest() if spec.chat_template is not None else None
    return {"files": sorted((f.name, d) for f, d in digests.items()), "added": added, "template": template}


def located_digest(located: Located, split: str, cache_dir: Path) -> list[str]:
    """Content of a data set: a digest for each file, in reading order."""
    if located.kind == "hub":
        from paceline.data.readers import load_hub

        return [str(load_hub(located, split)._fingerprint)]
    files: Sequence[Path] = located.files
    if located.folder is not None:
        files = sorted(p for p in located.folder.rglob("*") if p.is_file() and not p.name.startswith((".", "cache-")))
    return list(digest_files(files, cache_dir).values())


def digest_files(files: Iterable[Path], cache_dir: Path) -> dict[Path, str]:
    """sha256 of each file; remembered by (path, size, time of change, inode) so that large files are not read again."""
    memo = cache_dir / "digests"
    return {file: _digest(file, memo) for file in files}


def _digest(file: Path, memo: Path) -> str:
    try:
        status = file.stat()
        stamp = [str(file.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        note = memo / hashlib.sha256(str(stamp[0]).encode()).hexdigest()[:32]
        known = _read_json(note)
        if known is not None and known.get("stamp") == stamp:
            return str(known["sha256"])
        begun = time.time()
        digest = hashlib.sha256()
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as exc:
        raise DataError(
            Diagnostic("data.unreadable", "the file cannot be read", str(file), exc.strerror or str(exc))
        ) from exc
    if begun - status.st_ctime > _SETTLED_SECONDS:
        _remember(note, {"stamp": stamp, "sha256": digest.hexdigest()})
    return digest.hexdigest()


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _remember(note: Path, value: dict[str, Any]) -> None:
    """Write the note whole or not at all; a cache that cannot be written costs time only."""
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        staged = note.with_name(f"{note.name}.{os.getpid()}")
        staged.write_text(json.dumps(value), "utf-8")
        staged.replace(note)
    except OSError:
        return
