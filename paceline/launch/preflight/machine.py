"""Checks of this machine other than its hardware: rendezvous address, port, run directory, packages, hub."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from paceline.config.source import DEFAULTS
from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.files import not_writable
from paceline.core.package import cache_folder
from paceline.core.security.secrets import without_secrets
from paceline.launch import codes
from paceline.launch.child import run_job
from paceline.launch.claim_run_dir import check_run_dir
from paceline.launch.environment.job_managers import started_by
from paceline.launch.network import check_address, resolve_port
from paceline.launch.process_spec import Cluster
from paceline.launch.run_secret import read_secret, unsigned
from paceline.launch.supervision.generation_servers import check_start
from paceline.rules import codes as rules_codes

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.config.load import Loaded
    from paceline.config.schema import Config
    from paceline.core.rundir import RunDir
    from paceline.plan.hardware.probe import Hardware

#: Caused by another run, which may have ended by the time this one starts: warnings while planning.
OF_ANOTHER_RUN = (codes.RUN_EXISTS.name, codes.RUN_IN_USE.name, codes.LAUNCH_PORT_IN_USE.name)
HUB_SECONDS = 5.0  # for one connection
SANDBOX_SECONDS = 60.0  # it starts an interpreter in namespaces of its own
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # either stops every download of the libraries
# ``owner/rows.json`` is a file that is missing, no data set of the hub
_ROW_FILES = (".json", ".jsonl", ".ndjson", ".parquet", ".csv", ".txt")


def of_machine(
    loaded: Loaded, hardware: Hardware, processes: int, known: bool, run: RunDir, *, met: bool = False
) -> list[Diagnostic]:
    """Return the diagnostics of this machine.

    ``known``: the model's config.json is on this machine; ``met``: a launcher has already given the processes
    their rendezvous address.
    """
    from paceline.plan.packages import check_packages

    config = loaded.config
    findings = meeting_place(loaded, processes, met=met)
    # Inside a launcher the listener may be that launcher
    if not met and config.launch.master_port and started_by(os.environ) is None:
        findings += _raised(partial(resolve_port, Cluster.of(config.launch)))
    findings += _raised(partial(check_run_dir, run, config.training))
    cache = Path(config.data.cache_dir).expanduser() if config.data.cache_dir else cache_folder(os.environ)
    if wrong := not_writable(cache):
        findings.append(codes.DATA_CACHE_WRITE("data.cache_dir", f"{cache}: {wrong}"[:600]))
    findings += check_packages(config, loaded.provenance, os.environ, hardware.device)
    findings += check_start(config, met=met)
    findings += hub_findings(config, known, os.environ)
    return [replace(d, severity=Severity.WARNING) if d.code in OF_ANOTHER_RUN else d for d in findings]


def _raised(check: Callable[[], object]) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of the error that a check raises; none if it raises none."""
    try:
        check()
    except PacelineError as error:
        return error.diagnostics
    return ()


def meeting_place(loaded: Loaded, processes: int, *, met: bool = False) -> list[Diagnostic]:
    """Check that the config's nodes can rendezvous, and that the rendezvous store is protected by a secret.

    With ``met`` (a launcher has set the rendezvous address) only the store's secret is checked.
    """
    section, source = loaded.config.launch, loaded.provenance.get("launch.master_addr")
    allowed = section.allow_unsigned_store
    open_port = None if met else unsigned(os.environ, section.nnodes, processes, ours=True, allowed=allowed)
    findings = [open_port] if open_port else []
    try:
        read_secret(os.environ)  # raises
        if not met:
            is_set = source is not None and source.layer != DEFAULTS
            findings += check_address(Cluster.of(section), is_set=is_set)
    except ConfigError as error:
        findings += error.diagnostics
    return findings


def code_sandbox(config: Config) -> str | None:
    """Return why the sandbox cannot be used: empty if it can, None if this config runs no programs."""
    rollout = config.training.rollout
    if rollout is None or not rollout.allow_code_execution or all(r.name != "code" for r in rollout.rewards):
        return None
    module, environ = "paceline.algorithms.rewards.code_reward", without_secrets(os.environ)
    refused, ended = run_job(module, {}, SANDBOX_SECONDS, environ=environ)
    return f"the sandbox could not be tested: {ended}" if ended else str(refused)


def hub_findings(config: Config, known: bool, environ: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Yield warnings about names on the Hugging Face hub (a plan can be made without the files).

    ``known``: the model's config.json is on this machine.
    """
    model = config.model
    name = None if model.config is not None else model.name_or_path
    here = name is None or Path(name).expanduser().exists()
    # A revision has no effect on a local model.
    if model.revision and here and not model.trust_remote_code:
        kind = "created from scratch" if name is None else "a folder"
        what = f"the model is {kind}, but a revision applies to the hub only and has no effect"
        hint = "remove it, or name the model on the hub"
        yield codes.MODEL_REVISION_UNREAD(what, "model.revision", model.revision, hint, Severity.WARNING)
    # The rest is not in the cache: is it forbidden to download it, or impossible?
    missing = list(_missing(config, name if name and not known and not here else None, environ))
    off = [k for k in _OFFLINE if environ.get(k, "").lower() in ("1", "true", "yes", "on")]
    failed = unreachable(environ) if missing and not off else ""
    for code, subject, key, target in missing if off or failed else ():
        fetch = f"hf download {target}" + (" --repo-type dataset" if subject == "the data set" else "")
        if off:
            what = f"{subject} is not on this machine, and {off[0]} is set, so nothing is downloaded"
            hint = f"run {fetch} with network access, or name a folder"
        else:
            code = rules_codes.HUB_UNREACHABLE
            what = f"{subject} is not on this machine, and the hub cannot be reached ({failed})"
            hint = f"check the network and HF_ENDPOINT, or run {fetch} on another machine and name the folder"
        yield code(what, key, target, hint, Severity.WARNING)


def _missing(
    config: Config, model: str | None, environ: Mapping[str, str]
) -> Iterator[tuple[Code, str, str, str]]:
    """Yield the needed downloads, ``model`` first: the code if downloads are forbidden, the kind, the key and
    the name.
    """
    if model:
        yield rules_codes.MODEL_OFFLINE, "the model", "model.name_or_path", model
    home = Path(environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    models = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    tokenizer = config.model.tokenizer
    folder = models / f"models--{(tokenizer or '').replace('/', '--')}"
    if tokenizer and _is_of_hub(tokenizer, owned=False) and not folder.is_dir():
        yield codes.DATA_OFFLINE, "the tokenizer", "model.tokenizer", tokenizer
    datasets = Path(environ.get("HF_DATASETS_CACHE") or home / "datasets")
    for key, sections in (("data.train", config.data.train), ("data.eval", config.data.eval or ())):
        for path in dict.fromkeys(section.path for section in sections):
            if _is_of_hub(path) and not any((datasets / name).is_dir() for name in _folder_names(path)):
                yield codes.DATA_OFFLINE, "the data set", key, path


def _folder_names(path: str) -> Iterable[str]:
    """Return the possible cache folder names of a data set: ``owner/MyRows`` may be ``owner___my_rows``."""
    owner, _, name = path.partition("/")
    snake = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)).lower()
    return f"{owner}___{name}", f"{owner}___{snake}"


def _is_of_hub(name: str, *, owned: bool = True) -> bool:
    """Whether ``name`` has the form ``owner/name`` and is not a path on this machine. ``owned`` False: a
    single name such as ``gpt2`` counts, too.
    """
    word = r"[A-Za-z0-9][\w.-]*"
    plain = re.fullmatch(f"{word}/{word}" if owned else f"({word}/)?{word}", name) is not None
    return plain and Path(name).suffix.lower() not in _ROW_FILES and not Path(name).exists()


def unreachable(environ: Mapping[str, str]) -> str:
    """Return why no connection to the hub, or to the proxy in between, can be opened; empty if one can.

    Runs in a thread, since a name lookup has no time limit.
    """
    hub = urlsplit(environ.get("HF_ENDPOINT") or "https://huggingface.co")
    proxies = {scheme: url for scheme, url in getproxies().items() if scheme != "no"}
    proxy = proxies.get(hub.scheme) or proxies.get("all")
    target = hub
    if proxy and not proxy_bypass(hub.netloc):
        target = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    host = target.netloc.rpartition("@")[2]  # without a password
    reasons = [f"{host}: no answer within {HUB_SECONDS:.0f} s"]

    def connect() -> None:
        try:
            port = target.port or (80 if target.scheme == "http" else 443)
            socket.create_connection((target.hostname or "", port), timeout=HUB_SECONDS).close()
            reasons.append("")
        except (OSError, ValueError) as error:
            reasons.append(f"{host}: {getattr(error, 'strerror', None) or error}")

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return reasons[-1]
