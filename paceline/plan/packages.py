"""Check packages, compilers and logins that a config needs, without importing anything."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata, util
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

from paceline.config.registries.object_store_url import EXTRA, PACKAGE
from paceline.config.registries.optimizers import BUILT
from paceline.config.registries.trackers import ALL, TRACKERS, TrackerFacts, names_of
from paceline.config.schema import Config
from paceline.config.source import DEFAULTS, Source
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.plan import codes
from paceline.plan.hardware.device_files import triton_obstacle

_ATTENTION = {
    "flash_attention_2": ("flash_attn", "pip install flash-attn"),
    "flash_attention_3": ("flash_attn_interface", "build hopper/ of Dao-AILab's flash-attention"),
    "flash_attention_4": ("flash_attn", "pip install flash-attn-4"),
}
Find = Callable[[str], str | None]


def installed(name: str) -> str | None:
    """Return the place of an installed package; None if it is missing, or just a folder of that name.

    (``wandb`` creates such a folder.)
    """
    spec = util.find_spec(name)
    return spec.origin if spec is not None else None


def check_packages(
    config: Config,
    provenance: Mapping[str, Source],
    environ: Mapping[str, str],
    device: str,
    find: Find = installed,
) -> Iterator[Diagnostic]:
    """Yield problems with missing packages: errors if the run would fail, else warnings."""
    yield from (package_fault.finding() for package_fault in made_for_another_torch())
    yield from _trackers(config, provenance, environ, find)
    name = config.model.attn_implementation
    if name in _ATTENTION and find(_ATTENTION[name][0]) is None:
        package, install = _ATTENTION[name]
        yield _missing(
            f"{name} needs the package {package}",
            "model.attn_implementation",
            package,
            f"{install}; or set attn_implementation: auto",
        )
    yield from _data(config, find)
    t = config.training
    package = BUILT[t.optim].package if t.optim in BUILT else ""
    if package and find(package) is None:
        yield _missing(
            f"the optimizer {t.optim} needs the package {package}",
            "training.optim",
            package,
            "pip install 'paceline[optimizers]', or set optim: adamw_torch_fused",
        )
    if t.fp8 and find("torchao") is None:
        yield _missing(
            "fp8 needs the package torchao",
            "training.fp8",
            "torchao",
            "pip install 'paceline[optimizers]', or set fp8: false",
        )
    if t.torch_compile and t.torch_compile_backend in (None, "inductor"):
        yield from _compiler(device)


def _compiler(device: str) -> Iterator[Diagnostic]:
    """Yield what inductor lacks: a C++ compiler for a CPU; for a device Triton, and a C compiler for its
    launchers.
    """
    key = "training.torch_compile"
    if device == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        yield codes.PLAN_COMPILER(
            "torch.compile on a CPU needs a C++ compiler",
            key,
            "no c++, g++ or clang++ on PATH",
            "apt-get install g++; or set torch_compile: false",
        )
    if device != "cpu" and (obstacle := triton_obstacle()):
        yield codes.PLAN_COMPILER(
            "torch.compile needs Triton, which builds its launchers with a C compiler and Python's headers",
            key,
            obstacle,
            "pip install triton; apt-get install gcc python3-dev; or set torch_compile: false",
        )


def _trackers(
    config: Config, provenance: Mapping[str, Source], environ: Mapping[str, str], find: Find
) -> Iterator[Diagnostic]:
    """Reject configured trackers that are not installed; warn of those that will record offline.

    The default and ``all`` use the installed ones.
    """
    source, key = provenance.get("training.report_to"), "training.report_to"
    report_to = config.training.report_to
    if source is None or source.layer == DEFAULTS or ALL in report_to:
        return
    for name in names_of(report_to):
        facts = TRACKERS.get(name)
        if facts is None:
            continue
        if find(facts.package) is None:
            yield codes.TRACKER_NOT_INSTALLED(
                f"the tracker {name} is not installed",
                key,
                facts.package,
                f"{facts.install}, or remove '{name}'",
            )
        elif not has_key(name, environ) and not meant_offline(name, environ):
            yield codes.TRACKER_OFFLINE(
                f"{name} has no key of its server here: it records offline, for `{facts.later}` later",
                key,
                f"no {facts.key}",
                f"run {name} login, or set {facts.mode}=offline if this is intended",
                Severity.WARNING,
            )


def _data(config: Config, find: Find) -> Iterator[Diagnostic]:
    """Report missing readers of Parquet, ``datasets`` folders and hub data sets."""
    for key, sections in (("data.train", config.data.train), ("data.eval", config.data.eval or ())):
        for section in sections:
            path = Path(section.path).expanduser()
            saved = (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()
            needs = (
                "pyarrow"
                if path.suffix.lower() == ".parquet"
                else "datasets"
                if saved or not path.exists()
                else ""
            )
            if needs and find(needs) is None:
                yield _missing(
                    f"{needs} is needed to read {section.path}",
                    key,
                    needs,
                    f"pip install {needs}, or provide the rows as .jsonl",
                )


def _missing(what: str, where: str, package: str, hint: str) -> Diagnostic:
    return codes.PLAN_PACKAGE(what, where, f"{package} is not installed", hint)


def missing_object_store(where: str) -> Diagnostic | None:
    """Return an error if the package for object storage is not installed, else None."""
    return None if installed(PACKAGE) else codes.SAVE_OBJECTS_PACKAGE(where, PACKAGE, extra=EXTRA)


_OFF = ("offline", "disabled", "local")


def has_key(name: str, environ: Mapping[str, str]) -> bool:
    """Whether the key of the tracker ``name`` for its server is set here, or none is needed."""
    facts = TRACKERS[name]
    return not facts.key or bool(environ.get(facts.key)) or _has_login(facts, environ)


def meant_offline(name: str, environ: Mapping[str, str]) -> bool:
    """Whether the tracker's own variable turns sending off."""
    mode = TRACKERS[name].mode
    return bool(mode) and environ.get(mode, "").lower() in _OFF


def _has_login(facts: TrackerFacts, environ: Mapping[str, str]) -> bool:
    netrc_path = environ.get("NETRC") if facts.host else None
    path = Path(netrc_path or facts.login.replace("~", environ.get("HOME", "~"), 1)).expanduser()
    host = urlsplit(environ.get("WANDB_BASE_URL", "") if facts.host else "").hostname or facts.host
    try:
        hosts = netrc(str(path)).hosts
    except (OSError, NetrcParseError, UnicodeError):
        return False
    return host in hosts if host else bool(hosts)


#: those that Transformers imports and that name their torch
IMPORTED = ("torchvision",)
_PINNED = re.compile(r"torch\s*\(?==\s*([0-9][\w.]*)")


@dataclass(frozen=True)
class MadeFor:
    """A package, its version, the torch release it was built for, and the installed one."""

    package: str
    version: str
    wants: str
    torch: str

    def finding(self) -> Diagnostic:
        """Return the warning with its remedy."""
        return codes.PLAN_OTHER_TORCH(
            self.package,
            f"torch {self.torch}",
            package=self.package,
            version=self.version,
            wants=self.wants,
            release=_release(self.torch),
        )


def made_for_another_torch() -> Iterator[MadeFor]:
    """Yield packages built for another minor release of torch: their operators do not load."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return
    for package in IMPORTED:
        try:
            version, requirements = metadata.version(package), metadata.requires(package) or []
        except metadata.PackageNotFoundError:
            continue
        wants = next((match[1] for line in requirements if (match := _PINNED.match(line))), "")
        if wants and _release(wants) != _release(torch):
            yield MadeFor(package, version, wants, torch)


def _release(version: str) -> str:
    """``2.13`` of ``2.13.0+cu130``: patches keep the interface."""
    return ".".join(version.split("+")[0].split(".")[:2])
