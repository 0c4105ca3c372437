"""Options that ``accelerate launch`` does not pass on, read from the command line of an ancestor process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config.import_export.commands.launchers import ACCELERATE_SWITCHES as SWITCHES
from paceline.launch.processes import parent_of

PROC = Path("/proc")
_MOST_ANCESTORS = 12
_SHORT = {"h": "help", "q": "quiet", "m": "module", "t": "tee"}
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


@dataclass(frozen=True)
class LauncherOptions:
    """``options``: the command's options by name; the value is None for a flag."""

    options: dict[str, str | None] = field(default_factory=dict)

    def not_handed_on(self) -> dict[str, str]:
        """Return the environment variables to set for options that the launcher does not pass on."""
        given = {variable: self.options.get(option) for option, variable in NOT_HANDED_ON.items()}
        return {variable: value for variable, value in given.items() if value is not None}

    def thrown_away(self) -> dict[str, str]:
        """Return each ignored option with the one it needs, unless a config file may set that one."""
        if "config_file" in self.options or DEFAULT_FILE.exists():
            return {}
        found = {}
        for option in self.options:
            needs = next((need for start, need in NEEDS.items() if option.startswith(start)), None)
            if needs is not None and needs.split()[0] not in self.options:
                found[option] = needs
        return found


DEFAULT_FILE = Path(os.path.expanduser("~/.cache/huggingface/accelerate/default_config.yaml"))


def accelerate_options(lines: Sequence[Sequence[str]]) -> LauncherOptions:
    """Return the options of the first of these command lines that is ``accelerate launch``.

    Empty if none is.
    """
    for words in lines:
        begin = _begin(words)
        if begin:
            return LauncherOptions(_options(words[begin:]))
    return LauncherOptions()


def ancestors() -> list[list[str]]:
    """Return the command lines of this process's ancestors, nearest first.

    Empty where ``/proc`` is missing.
    """
    found: list[list[str]] = []
    pid = os.getppid()
    while pid > 1 and len(found) < _MOST_ANCESTORS:
        try:
            raw = (PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            break
        found.append([word.decode("utf-8", "replace") for word in raw.split(b"\0") if word])
        pid = parent_of(pid)
    return found


def _begin(words: Sequence[str]) -> int:
    """Return the index of the first option of an accelerate launch command; 0 if it is another command.

    The command is ``accelerate launch``, ``accelerate-launch`` or ``-m accelerate.commands.launch``.
    """
    for index, word in enumerate(words[:4]):
        name = os.path.basename(word)
        if (
            name == "accelerate-launch"
            or word == "accelerate.commands.launch"
            or name == "launch.py"
            and "accelerate" in word
        ):
            return index + 1
        if name == "accelerate" or word == "accelerate.commands.accelerate_cli":
            return index + 2 if words[index + 1 : index + 2] == ["launch"] else 0
    return 0


def _options(words: Sequence[str]) -> dict[str, str | None]:
    """Parse the options before the script."""
    found: dict[str, str | None] = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        word, equals, value = words[index].partition("=")
        name = word.lstrip("-").replace("-", "_")
        name = _SHORT.get(name, name)
        index += 1
        if equals:
            found[name] = value
        elif name in SWITCHES or index >= len(words):
            found[name] = None
        else:
            found[name] = words[index]
            index += 1
    return found
