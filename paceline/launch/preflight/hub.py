"""Names on the Hugging Face hub: what cannot be downloaded, and revisions of local models."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.launch import codes
from paceline.rules import codes as rules_codes

if TYPE_CHECKING:
    from paceline.config.schema import Config

SECONDS = 5.0  # for one connection
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
    # The rest is not in the cache: is it forbidden to download it, or impossible?
    missing = list(_missing(config, name if name and not known and not here else None, environ))
    if off:
        for code, which, key, named in missing:
            yield _offline(code, which, key, named, off[0])
    elif missing and (failed := unreachable(environ)):
        for _, which, key, named in missing:
            what = f"{which} is not on this machine, and the hub cannot be reached ({failed})"
            fetch = _fetch(which, named)
            hint = f"check the network and HF_ENDPOINT, or run {fetch} on another machine and name the folder"
            yield rules_codes.HUB_UNREACHABLE(what, key, named, hint, Severity.WARNING)


def _missing(
    config: Config, model: str | None, environ: Mapping[str, str]
) -> Iterator[tuple[Code, str, str, str]]:
    """Yield what would be downloaded, ``model`` first: its code where that is forbidden, what it is, its key
    and its name.
    """
    if model:
        yield rules_codes.MODEL_OFFLINE, "the model", "model.name_or_path", model
    home = Path(environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    cache = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    tokenizer = config.model.tokenizer
    if (
        tokenizer
        and _of_hub(tokenizer, owned=False)
        and not (cache / f"models--{tokenizer.replace('/', '--')}").is_dir()
    ):
        yield codes.DATA_OFFLINE, "the tokenizer", "model.tokenizer", tokenizer
    kept = Path(environ.get("HF_DATASETS_CACHE") or home / "datasets")
    for key, sections in (("data.train", config.data.train), ("data.eval", config.data.eval or ())):
        for path in dict.fromkeys(section.path for section in sections):
            if _of_hub(path) and not _has_set(kept, path):
                yield codes.DATA_OFFLINE, "the data set", key, path


def _has_set(kept: Path, path: str) -> bool:
    """Whether ``datasets`` keeps this data set; it writes ``owner/MyRows`` as ``owner___my_rows``."""
    owner, _, name = path.partition("/")
    snake = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)).lower()
    return any((kept / f"{owner}___{one}").is_dir() for one in (name, snake))


def unreachable(environ: Mapping[str, str]) -> str:
    """Return why no connection to the hub, or to the proxy in between, can be opened; empty if one can.

    In a thread: looking a name up has no time limit.
    """
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    to = urlsplit(endpoint)
    proxies = {scheme: url for scheme, url in getproxies().items() if scheme != "no"}
    proxy = proxies.get(to.scheme) or proxies.get("all")
    by = urlsplit(proxy if "//" in proxy else f"//{proxy}") if proxy else to
    if proxy and proxy_bypass(to.netloc):
        by = to
    place = by.netloc.rpartition("@")[2]  # without a password
    found = [f"{place}: no answer within {SECONDS:.0f} s"]

    def connect() -> None:
        try:
            port = by.port or (80 if by.scheme == "http" else 443)
            socket.create_connection((by.hostname or "", port), timeout=SECONDS).close()
            found.append("")
        except (OSError, ValueError) as error:
            found.append(f"{place}: {getattr(error, 'strerror', None) or error}")

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return found[-1]


def _of_hub(name: str, *, owned: bool = True) -> bool:
    """Whether ``name`` has the form ``owner/name`` and is not a path on this machine. ``owned`` False: a name
    alone is one, too, as ``gpt2``.
    """
    one = r"[A-Za-z0-9][\w.-]*"
    plain = re.fullmatch(f"{one}/{one}" if owned else f"({one}/)?{one}", name) is not None
    return plain and Path(name).suffix.lower() not in _ROWS and not Path(name).exists()


def _offline(code: Code, which: str, key: str, name: str, variable: str) -> Diagnostic:
    what = f"{which} is not on this machine, and {variable} is set, so nothing is downloaded"
    hint = f"run {_fetch(which, name)} with network access, or name a folder"
    return code(what, key, name, hint, Severity.WARNING)


def _fetch(which: str, name: str) -> str:
    return f"hf download {name}" + (" --repo-type dataset" if which == "the data set" else "")
