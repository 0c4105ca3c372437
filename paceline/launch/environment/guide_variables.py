"""Environment variables from the guide: passed on, or translated into config keys; each with a note.

Also options that ``accelerate launch`` does not pass on, read from the command line of an ancestor process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config import codes as config_codes
from paceline.config.import_export.commands.launchers import launch_of
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.package import cache_folder
from paceline.launch import codes
from paceline.launch.environment.job_managers import parse_nonnegative_int, started_by
from paceline.launch.network import is_loopback
from paceline.launch.processes import PROC, lineage

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
_MAX_ANCESTORS = 12  # a launcher is a few shells up at most
#: option → the variable that accelerate reads but does not set
NOT_HANDED_ON = {
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
    "offload_param_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
}
#: prefix of a group of options → the option without which accelerate ignores them
NEEDS = {
    "fsdp_": "use_fsdp",
    "zero": "use_deepspeed",
    "offload_": "use_deepspeed",
    "megatron_lm_": "use_megatron_lm",
    "parallelism_config_": "use_parallelism_config",
    "fp8_": "mixed_precision fp8",
}
DEFAULT_FILE = Path(os.path.expanduser("~/.cache/huggingface/accelerate/default_config.yaml"))


@dataclass(frozen=True)
class Translation:
    """Config overrides and notes from environment variables.

    ``overrides``: by dotted config path; ``variables``: set in place of the launcher; ``notes``: diagnostics
    to log, errors included.
    """

    overrides: Mapping[str, str]
    notes: tuple[Diagnostic, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return ``environ`` plus the overrides as ``PACELINE_…`` variables (read by ``load_config``).

        Existing ones stay.
        """
        written = {
            f"PACELINE_{path.replace('.', '__').upper()}": value for path, value in self.overrides.items()
        }
        return {**written, **self.variables, **environ}


def translate(environ: Mapping[str, str], above: Sequence[Sequence[str]] | None = None) -> Translation:
    """Translate the guide's variables in ``environ``, and options of accelerate's command line, for this run.

    ``above``: command lines of the ancestor processes (None: read from ``/proc``).
    """
    overrides: dict[str, str] = {}
    notes = [
        codes.LAUNCH_ENV_PASSED(name, environ[name], meaning=meaning)
        for name, meaning in PASSED_ON.items()
        if name in environ
    ]
    _timeouts(environ, overrides, notes)
    # A user's address of node 0, not a launcher's
    address = environ.get("MASTER_ADDR", "")
    by_launcher = started_by(environ) is not None or "ACCELERATE_USE_CPU" in environ
    if address and not by_launcher and not is_loopback(address):
        keys = {"launch.master_addr": address, "launch.master_port": environ.get("MASTER_PORT", "")}
        overrides |= {path: value for path, value in keys.items() if value}
        notes.append(codes.LAUNCH_RENDEZVOUS("MASTER_ADDR", " ".join(filter(None, keys.values()))))
    _deepspeed_log_level(environ, overrides, notes)
    debug = environ.get("TORCH_DISTRIBUTED_DEBUG")
    if debug is not None and debug.upper() not in ("OFF", "INFO", "DETAIL"):
        notes.append(codes.LAUNCH_TORCH_DEBUG("TORCH_DISTRIBUTED_DEBUG", debug))
    variables = _accelerate(environ, above, notes) if "ACCELERATE_MIXED_PRECISION" in environ else {}
    return Translation(overrides, tuple(notes), variables)


def _timeouts(environ: Mapping[str, str], overrides: dict[str, str], notes: list[Diagnostic]) -> None:
    """Read NCCL_TIMEOUT, else DEEPSPEED_TIMEOUT, as the process group's."""
    for code, name, unit, seconds, example, reason in (
        (
            codes.LAUNCH_NCCL_TIMEOUT,
            "NCCL_TIMEOUT",
            "seconds",
            1,
            1800,
            "NCCL itself does not read this variable; it is read as training.ddp_timeout, the process"
            " group's timeout in seconds",
        ),
        (
            codes.LAUNCH_DEEPSPEED_TIMEOUT,
            "DEEPSPEED_TIMEOUT",
            "minutes",
            60,
            30,
            "DeepSpeed's minutes are read as training.ddp_timeout, the process group's timeout in"
            " seconds, because Paceline opens the group",
        ),
    ):
        text = environ.get(name)
        if text is None or "training.ddp_timeout" in overrides:
            continue
        if parse_nonnegative_int(text) < 1:
            message = f"{name} must be a number of {unit} of 1 or more"
            notes.append(code(message, name, text, f"{name}={example}, or training.ddp_timeout: 1800"))
            continue
        overrides["training.ddp_timeout"] = text.strip() if seconds == 1 else str(int(text) * seconds)
        notes.append(code(reason, name, text, "set training.ddp_timeout in the YAML", Severity.NOTE))


def _deepspeed_log_level(
    environ: Mapping[str, str], overrides: dict[str, str], notes: list[Diagnostic]
) -> None:
    text = environ.get("DEEPSPEED_LOG_LEVEL")
    if text is None:
        return
    level, verdict = text.strip().lower(), "DeepSpeed itself does not read this variable"
    if level in LOG_LEVELS:
        overrides["training.log_level"] = level
        verdict = f"{verdict}; it is read as training.log_level"
        hint, severity = "set training.log_level in the YAML", Severity.NOTE
    else:
        verdict = f"{verdict}, and the value is not a log level: it is ignored"
        hint, severity = f"training.log_level: one of {', '.join(LOG_LEVELS)}", Severity.WARNING
    notes.append(codes.LAUNCH_DEEPSPEED_LOG_LEVEL(verdict, "DEEPSPEED_LOG_LEVEL", text, hint, severity))


def _accelerate(
    environ: Mapping[str, str], above: Sequence[Sequence[str]] | None, notes: list[Diagnostic]
) -> dict[str, str]:
    """Return the variables for options that ``accelerate launch`` does not pass on.

    Note the options it ignores.
    """
    options = accelerate_options(ancestors() if above is None else above)
    # Options that accelerate ignores for lack of another one, unless a config file may set that one
    by_file = "config_file" in options or DEFAULT_FILE.exists()
    for option in () if by_file else options:
        needs = next((need for start, need in NEEDS.items() if option.startswith(start)), "")
        if needs and needs.split()[0] not in options:
            message = f"accelerate launch ignores --{option}, because --{needs} is not given"
            lost, source = f"--{option}", "accelerate launch"
            notes.append(config_codes.LAUNCH_NO_EFFECT(message, source, lost, f"--{needs}", Severity.WARNING))
    requested = options.get("num_processes") or ""
    several = parse_nonnegative_int(requested) > 1
    # Several processes were requested, but accelerate started a single one
    single = "ACCELERATE_USE_CPU" in environ and not environ.get("RANK") and started_by(environ) is None
    if single and (several or environ.get("MASTER_ADDR")):
        many = f"--num_processes {requested}" if several else "more than one process"
        message = (
            f"accelerate launch should start {many}, but started one: without --multi_gpu,"
            " --use_fsdp or --use_deepspeed it never starts more"
        )
        remedy = (
            "use accelerate launch --multi_gpu --num_processes 2 main.py … (works on CPUs as well),"
            " or torchrun --nproc_per_node 2 main.py …"
        )
        notes.append(codes.LAUNCH_ONE_PROCESS(message, "accelerate launch", many, remedy, Severity.WARNING))
    values = {variable: options.get(option) for option, variable in NOT_HANDED_ON.items()}
    return {name: value for name, value in values.items() if value is not None and name not in environ}


def accelerate_options(lines: Sequence[Sequence[str]]) -> dict[str, str | None]:
    """Return the options of the first of these command lines that is ``accelerate launch``, None for a flag.

    Empty if none is.
    """
    for line in lines:
        # python …/accelerate/commands/launch.py
        words = [
            "accelerate-launch" if os.path.basename(word) == "launch.py" and "accelerate" in word else word
            for word in line
        ]
        launch = launch_of(words, range(len(words)))
        if any(name.startswith("accelerate") for name in launch.launchers):
            return {o.name: o.value for o in launch.options if o.launcher.startswith("accelerate")}
    return {}


def ancestors() -> list[list[str]]:
    """Return the command lines of this process's ancestors, nearest first.

    Empty where ``/proc`` is missing.
    """
    lines: list[list[str]] = []
    for pid in [pid for pid in lineage()[1:] if pid > 1][:_MAX_ANCESTORS]:
        try:
            raw = (PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            break
        lines.append([word.decode("utf-8", "replace") for word in raw.split(b"\0") if word])
    return lines


def current() -> dict[str, str]:
    """Return a copy of this process's environment, for rooms that may not read ``os.environ`` themselves."""
    return dict(os.environ)


def set_defaults(values: Mapping[str, str]) -> None:
    """Set variables of this process that are not set yet, for rooms that may not write them themselves."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def keep_compiled_code_private(environ: Mapping[str, str]) -> None:
    """Set torch.compile's cache directory to the user's own cache.

    Torch's default is a folder in /tmp that another user could create first, and torch executes code from it.
    """
    set_defaults({"TORCHINDUCTOR_CACHE_DIR": str(cache_folder(environ) / "inductor")})
