"""Environment variables from the guide: passed on, or translated into config keys; each with a note."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.config import codes as config_codes
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.package import cache_folder as cache_folder
from paceline.launch import codes
from paceline.launch.addresses import is_loopback
from paceline.launch.environment.accelerate_options import accelerate_options, ancestors
from paceline.launch.environment.job_managers import started_by as started_by
from paceline.launch.environment.job_managers import whole

# Read by NCCL, CUDA or torch themselves: passed on as they are.
PASSED_ON: Mapping[str, str] = {
    "NCCL_DEBUG": "NCCL prints debug output",
    "NCCL_IB_DISABLE": "NCCL does not use InfiniBand if it is 1",
    "NCCL_P2P_DISABLE": "NCCL copies between devices through host memory if it is 1",
    "NCCL_SOCKET_IFNAME": "the network interface that NCCL uses first",
    "GLOO_SOCKET_IFNAME": "the network interface that gloo uses",
    "TORCH_DISTRIBUTED_DEBUG": "torch checks collectives against each other; DETAIL is slow",
    "CUDA_VISIBLE_DEVICES": "only these CUDA devices are used",
    "CUDA_LAUNCH_BLOCKING": "every CUDA kernel runs synchronously if it is 1: for debugging, slow",
}
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True)
class Translation:
    """Config overrides and notes from environment variables.

    ``overrides``: by dotted config path; ``variables``: set in place of the launcher; ``notes``: diagnostics
    to log, errors included.
    """

    overrides: Mapping[str, str]
    notes: tuple[Diagnostic, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def environ(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return ``given`` plus the overrides as ``PACELINE_…`` variables (read by ``load_config``).

        Existing ones stay.
        """
        written = {
            f"PACELINE_{path.replace('.', '__').upper()}": value for path, value in self.overrides.items()
        }
        return {**written, **self.variables, **given}


def translate(environ: Mapping[str, str], above: Sequence[Sequence[str]] | None = None) -> Translation:
    """Translate the guide's variables in ``environ``, and options of accelerate's command line, for this run.

    ``above``: command lines of the ancestor processes (None: read from ``/proc``).
    """
    overrides: dict[str, str] = {}
    notes: list[Diagnostic] = []
    for name, meaning in PASSED_ON.items():
        if name in environ:
            notes.append(codes.LAUNCH_ENV_PASSED(name, environ[name], meaning=meaning))
    _nccl_timeout(environ, overrides, notes)
    _deepspeed_timeout(environ, overrides, notes)
    _rendezvous(environ, overrides, notes)
    _deepspeed_log_level(environ, overrides, notes)
    _torch_debug(environ, notes)
    variables = _accelerate(environ, above, notes)
    return Translation(overrides, tuple(notes), variables)


def _accelerate(
    environ: Mapping[str, str], above: Sequence[Sequence[str]] | None, notes: list[Diagnostic]
) -> dict[str, str]:
    """Return the variables for options that ``accelerate launch`` does not pass on.

    Note the options it ignores.
    """
    if "ACCELERATE_MIXED_PRECISION" not in environ:
        return {}
    # Options that accelerate ignores for lack of another one.
    command = accelerate_options(ancestors() if above is None else above)
    for option, needs in command.thrown_away().items():
        what = f"accelerate launch ignores --{option}, because --{needs} is not given"
        notes.append(
            config_codes.LAUNCH_NO_EFFECT(
                what, "accelerate launch", f"--{option}", f"--{needs}", Severity.WARNING
            )
        )
    num_processes = command.options.get("num_processes")
    several = whole(num_processes or "") > 1
    # Several processes were requested, but accelerate started a single one.
    simple = "ACCELERATE_USE_CPU" in environ and not environ.get("RANK") and started_by(environ) is None
    if simple and (several or environ.get("MASTER_ADDR")):
        many = f"--num_processes {num_processes}" if several else "more than one process"
        what = (
            f"accelerate launch should start {many}, but started one: without --multi_gpu,"
            " --use_fsdp or --use_deepspeed it never starts more"
        )
        hint = (
            "use accelerate launch --multi_gpu --num_processes 2 main.py … (works on CPUs as well),"
            " or torchrun --nproc_per_node 2 main.py …"
        )
        notes.append(codes.LAUNCH_ONE_PROCESS(what, "accelerate launch", many, hint, Severity.WARNING))
    return {name: value for name, value in command.not_handed_on().items() if name not in environ}


def _deepspeed_timeout(
    environ: Mapping[str, str], overrides: dict[str, str], notes: list[Diagnostic]
) -> None:
    given = environ.get("DEEPSPEED_TIMEOUT")
    if given is None or "training.ddp_timeout" in overrides:
        return
    if whole(given) < 1:
        what, hint = (
            "DEEPSPEED_TIMEOUT must be a number of minutes of 1 or more",
            "DEEPSPEED_TIMEOUT=30, or training.ddp_timeout: 1800",
        )
        notes.append(codes.LAUNCH_DEEPSPEED_TIMEOUT(what, "DEEPSPEED_TIMEOUT", given, hint))
        return
    overrides["training.ddp_timeout"] = str(int(given) * 60)
    what = (
        "DeepSpeed's minutes are read as training.ddp_timeout, the process group's timeout in"
        " seconds, because Paceline opens the group"
    )
    hint = "set training.ddp_timeout in the YAML"
    notes.append(codes.LAUNCH_DEEPSPEED_TIMEOUT(what, "DEEPSPEED_TIMEOUT", given, hint, Severity.NOTE))


def _rendezvous(environ: Mapping[str, str], overrides: dict[str, str], notes: list[Diagnostic]) -> None:
    """Take MASTER_ADDR and MASTER_PORT set by the user (not by a launcher) as the address of node 0."""
    address = environ.get("MASTER_ADDR", "")
    if (
        not address
        or started_by(environ) is not None
        or is_loopback(address)
        or "ACCELERATE_USE_CPU" in environ
    ):
        return
    taken = {"launch.master_addr": address, "launch.master_port": environ.get("MASTER_PORT", "")}
    overrides.update({path: value for path, value in taken.items() if value})
    found = " ".join(value for value in taken.values() if value)
    notes.append(codes.LAUNCH_RENDEZVOUS("MASTER_ADDR", found))


def _nccl_timeout(environ: Mapping[str, str], overrides: dict[str, str], notes: list[Diagnostic]) -> None:
    given = environ.get("NCCL_TIMEOUT")
    if given is None:
        return
    if whole(given) < 1:
        hint = "NCCL_TIMEOUT=1800, or training.ddp_timeout: 1800"
        notes.append(
            codes.LAUNCH_NCCL_TIMEOUT(
                "NCCL_TIMEOUT must be a number of seconds of 1 or more", "NCCL_TIMEOUT", given, hint
            )
        )
        return
    overrides["training.ddp_timeout"] = given.strip()
    what = (
        "NCCL itself does not read this variable; it is read as training.ddp_timeout, the process"
        " group's timeout in seconds"
    )
    notes.append(
        codes.LAUNCH_NCCL_TIMEOUT(
            what, "NCCL_TIMEOUT", given, "set training.ddp_timeout in the YAML", Severity.NOTE
        )
    )


def _deepspeed_log_level(
    environ: Mapping[str, str], overrides: dict[str, str], notes: list[Diagnostic]
) -> None:
    given = environ.get("DEEPSPEED_LOG_LEVEL")
    if given is None:
        return
    level = given.strip().lower()
    if level in LOG_LEVELS:
        overrides["training.log_level"] = level
        what = "DeepSpeed itself does not read this variable; it is read as training.log_level"
        notes.append(
            codes.LAUNCH_DEEPSPEED_LOG_LEVEL(
                what, "DEEPSPEED_LOG_LEVEL", given, "set training.log_level in the YAML", Severity.NOTE
            )
        )
        return
    what = "DeepSpeed itself does not read this variable, and the value is not a log level: it is ignored"
    hint = f"training.log_level: one of {', '.join(LOG_LEVELS)}"
    notes.append(codes.LAUNCH_DEEPSPEED_LOG_LEVEL(what, "DEEPSPEED_LOG_LEVEL", given, hint, Severity.WARNING))


def _torch_debug(environ: Mapping[str, str], notes: list[Diagnostic]) -> None:
    given = environ.get("TORCH_DISTRIBUTED_DEBUG")
    if given is not None and given.upper() not in ("OFF", "INFO", "DETAIL"):
        notes.append(codes.LAUNCH_TORCH_DEBUG("TORCH_DISTRIBUTED_DEBUG", given))


def current() -> dict[str, str]:
    """Return a copy of this process's environment, for rooms that may not read ``os.environ`` themselves."""
    return dict(os.environ)


def keep_compiled_code_private(environ: Mapping[str, str]) -> None:
    """Set torch.compile's cache directory to the user's own cache.

    Torch's default is a folder in /tmp that another user could create first, and torch executes code from it.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder(environ) / "inductor"))
