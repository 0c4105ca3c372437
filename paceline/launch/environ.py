"""Environment variables that the guide names: honoured, or translated into the config, and said either way."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.core.diagnostics import Diagnostic, Severity

# Read by NCCL, CUDA or torch themselves: passed on as they are.
PASSED_ON: Mapping[str, str] = {
    "NCCL_DEBUG": "NCCL prints what it does",
    "NCCL_IB_DISABLE": "NCCL leaves InfiniBand aside when it is 1",
    "NCCL_P2P_DISABLE": "NCCL copies between devices through host memory when it is 1",
    "NCCL_SOCKET_IFNAME": "the network interface NCCL starts from",
    "GLOO_SOCKET_IFNAME": "the network interface gloo uses",
    "TORCH_DISTRIBUTED_DEBUG": "torch checks collectives against each other; DETAIL is slow",
    "CUDA_VISIBLE_DEVICES": "only these CUDA devices are used",
    "CUDA_LAUNCH_BLOCKING": "each CUDA kernel is waited for when it is 1: for finding errors, slow",
}
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True)
class Translation:
    """``overrides`` by dotted config path; ``notes`` for the log, errors among them."""

    overrides: Mapping[str, str]
    notes: tuple[Diagnostic, ...]

    def environ(self, given: Mapping[str, str]) -> dict[str, str]:
        """``given`` with the overrides written as ``PACELINE_…`` variables, which ``load_config`` reads; those already there stay."""
        written = {f"PACELINE_{path.replace('.', '__').upper()}": value for path, value in self.overrides.items()}
        return {**written, **given}


def translate(environ: Mapping[str, str]) -> Translation:
    """What the guide's variables in ``environ`` mean for this run."""
    overrides: dict[str, str] = {}
    notes: list[Diagnostic] = []
    for name, meaning in PASSED_ON.items():
        if name in environ:
            notes.append(
                Diagnostic("launch.env_passed", f"passed on: {meaning}", name, environ[name], severity=Severity.NOTE)
            )
    _nccl_timeout(environ, overrides, notes)
    _deepspeed_log_level(environ, overrides, notes)
    _torch_debug(environ, notes)
    return Translation(overrides, tuple(notes))


def _nccl_timeout(environ: Mapping[str, str], overrides: dict[str, str], notes: list[Diagnostic]) -> None:
    given = environ.get("NCCL_TIMEOUT")
    if given is None:
        return
    if not given.strip().isdigit() or int(given) < 1:
        hint = "NCCL_TIMEOUT=1800, or training.ddp_timeout: 1800"
        notes.append(
            Diagnostic(
                "launch.nccl_timeout", "NCCL_TIMEOUT is a number of seconds from 1 up", "NCCL_TIMEOUT", given, hint
            )
        )
        return
    overrides["training.ddp_timeout"] = given.strip()
    what = "NCCL itself reads no such variable; taken as training.ddp_timeout, the process group's timeout in seconds"
    notes.append(
        Diagnostic(
            "launch.nccl_timeout", what, "NCCL_TIMEOUT", given, "training.ddp_timeout in the YAML", Severity.NOTE
        )
    )


def _deepspeed_log_level(environ: Mapping[str, str], overrides: dict[str, str], notes: list[Diagnostic]) -> None:
    given = environ.get("DEEPSPEED_LOG_LEVEL")
    if given is None:
        return
    level = given.strip().lower()
    if level in LOG_LEVELS:
        overrides["training.log_level"] = level
        what = "DeepSpeed itself reads no such variable; taken as training.log_level"
        notes.append(
            Diagnostic(
                "launch.deepspeed_log_level",
                what,
                "DEEPSPEED_LOG_LEVEL",
                given,
                "training.log_level in the YAML",
                Severity.NOTE,
            )
        )
        return
    what = "DeepSpeed itself reads no such variable, and this is no log level: not used"
    hint = f"training.log_level: one of {', '.join(LOG_LEVELS)}"
    notes.append(Diagnostic("launch.deepspeed_log_level", what, "DEEPSPEED_LOG_LEVEL", given, hint, Severity.WARNING))


def _torch_debug(environ: Mapping[str, str], notes: list[Diagnostic]) -> None:
    given = environ.get("TORCH_DISTRIBUTED_DEBUG")
    if given is not None and given.upper() not in ("OFF", "INFO", "DETAIL"):
        what = "torch refuses this value when it is imported"
        notes.append(Diagnostic("launch.torch_debug", what, "TORCH_DISTRIBUTED_DEBUG", given, "OFF, INFO or DETAIL"))


def current() -> dict[str, str]:
    """This process's environment, for those below launch, who may not read it themselves."""
    return dict(os.environ)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where prepared data is kept unless data.cache_dir says so: $PACELINE_CACHE, else ~/.cache/paceline."""
    return Path(environ.get("PACELINE_CACHE") or Path.home() / ".cache" / "paceline")


def started_by(environ: Mapping[str, str]) -> str | None:
    """The launcher that has started this process as one rank of several, or None when nobody has."""
    if "TORCHELASTIC_RUN_ID" in environ:
        return "accelerate" if "ACCELERATE_MIXED_PRECISION" in environ else "torchrun"
    if "OMPI_COMM_WORLD_RANK" in environ:
        return "mpirun"
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return "deepspeed" if "CROSS_SIZE" in environ and "LOCAL_SIZE" in environ else "env"
    # sbatch's own shell and salloc's interactive step have step numbers near 2**32: only srun's steps are ranks.
    step = environ.get("SLURM_STEP_ID", "")
    if step.isdigit() and int(step) < 0xFFFFFFF0 and "SLURM_PROCID" in environ:
        return "srun"
    return None
