"""The launchers before a program on a command line (torchrun, srun, conda run …)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

SET = re.compile(r"[A-Za-z_]\w*=")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: flags of ``accelerate launch`` 1.15 without a value; every other option takes the next word
ACCELERATE_SWITCHES = _names(
    "help quiet cpu multi_gpu tpu use_mps_device enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic"
    " dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config use_megatron_lm use_xpu"
    " ipex same_network module no_python tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16 debug"
    " fp8_use_autocast_during_eval"
)


@dataclass(frozen=True)
class Launcher:
    """A command that starts another. An option that is no switch takes the next word.

    - ``words``: how many words follow its options before the program
    - ``short``: one-letter options by name
    - ``pairs``: options that take two words
    - ``values``: the only options that take a word, if given
    """

    switches: frozenset[str] = frozenset()
    short: tuple[tuple[str, str], ...] = ()
    words: int = 0
    pairs: frozenset[str] = frozenset()
    values: frozenset[str] | None = None

    def takes(self, option: str) -> int:
        """Return how many words follow an option."""
        if option in self.pairs:
            return 2
        return int(option in self.values if self.values is not None else option not in self.switches)


def _letters(text: str) -> tuple[tuple[str, str], ...]:
    """Return one-letter options and their names, written ``n=name``."""
    return tuple((pair[0], pair[2:]) for pair in text.split())


def _few(*values: str, words: int = 0, short: str = "") -> Launcher:
    """Return a launcher whose only options with a value are these; ``short``: ``n=name p=prefix``."""
    return Launcher(short=_letters(short), words=words, values=frozenset(values))


_TORCHRUN = Launcher(
    _names("help standalone module no_python run_path virtual_local_rank use_env"),
    (("h", "help"), ("m", "module"), ("r", "redirects"), ("t", "tee")),
)
_SRUN = Launcher(
    _names(
        "help exclusive unbuffered pty overlap label verbose quiet kill_on_bad_exit overcommit contiguous"
        " preserve_env no_kill slurmd_debug disable_status version oversubscribe use_min_nodes"
        " spread_job"
    ),
    (
        *_letters("N=nodes n=ntasks c=cpus_per_task p=partition w=nodelist x=exclude J=job_name t=time"),
        *_letters("A=account G=gpus C=constraint o=output e=error q=qos D=chdir m=distribution l=label"),
        *_letters("u=unbuffered v=verbose Q=quiet K=kill_on_bad_exit O=overcommit s=oversubscribe"),
        *_letters("E=preserve_env Z=no_allocate d=dependency"),
    ),
)
_MPIRUN = Launcher(
    _names(
        "help allow_run_as_root oversubscribe tag_output verbose display_map report_bindings prepend_rank"
        " display_allocation nooversubscribe quiet bynode byslot l debug_daemons"
    ),
    pairs=frozenset(("mca", "gmca", "genv", "env")),
)
_DEEPSPEED = Launcher(
    _names(
        "help module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid bind_cores_to_rank"
        " quiet"
    ),
    (("h", "help"), ("H", "hostfile"), ("i", "include"), ("e", "exclude"), ("q", "quiet")),
)
_ACCELERATE = Launcher(ACCELERATE_SWITCHES, (("h", "help"), ("q", "quiet"), ("m", "module"), ("t", "tee")))
_CONDA = _few("name", "prefix", "cwd", short="n=name p=prefix v=verbose")
#: a command, or two words of one → what it is
LAUNCHERS = {
    "accelerate launch": _ACCELERATE,
    "accelerate-launch": _ACCELERATE,
    "torchrun": _TORCHRUN,
    "deepspeed": _DEEPSPEED,
    "srun": _SRUN,
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun"), _MPIRUN),
    **dict.fromkeys(("nohup", "time", "exec", "command", "setsid", "caffeinate", "unbuffer"), _few()),
    "env": _few("unset", "chdir", short="u=unset C=chdir i=ignore_environment"),
    "sudo": _few("user", "group", short="u=user g=group E=preserve_env H=set_home"),
    "nice": _few("adjustment", short="n=adjustment"),
    "ionice": _few("class", "classdata", short="c=class n=classdata"),
    "timeout": _few("signal", "kill_after", words=1, short="s=signal k=kill_after"),
    "stdbuf": _few("output", "error", "input", short="o=output e=error i=input"),
    "numactl": _few(
        *("cpunodebind", "membind", "physcpubind", "interleave", "preferred"),
        short="N=cpunodebind m=membind C=physcpubind i=interleave l=localalloc p=preferred",
    ),
    "taskset": _few(words=1, short="c=cpu_list"),
    **dict.fromkeys(("conda run", "mamba run", "micromamba run"), _CONDA),
    "uv run": _few(
        *("with", "python", "extra", "group", "project", "directory", "env_file", "package", "index_url"),
        short="p=python",
    ),
    **dict.fromkeys(("poetry run", "pdm run", "pipenv run", "pixi run"), _few()),
    "python": _few("X", "W", short="u=unbuffered O=optimised B=no_bytecode I=isolated"),
}
LAUNCH_NAMES = frozenset(name.partition(" ")[0] for name in LAUNCHERS) | {"python3"}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")


@dataclass(frozen=True)
class Option:
    """An option of a launcher, its name with underscores; ``value`` is None for a switch."""

    launcher: str
    name: str
    value: str | None
    line: int

    @property
    def key(self) -> str:
        """Return the option's name in a report, or the variable that sets it."""
        return self.launcher if self.launcher.isupper() else f"{self.launcher} --{self.name}"


@dataclass
class Launch:
    """The launchers of a command, outermost first, their options, and the index of the program's word.

    ``environment``: variables set for the program; ``places``: the line of each.
    """

    launchers: list[str] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    program: int = 0


def launch_of(words: Sequence[str], lines: Sequence[int]) -> Launch:
    """Return the launcher of a command's program, and the place of the program among the words."""
    launch = Launch()
    position = 0
    while position < len(words):
        if SET.match(words[position]):
            key, _, value = words[position].partition("=")
            launch.environment[key], launch.places[key] = value, lines[position]
            position += 1
            continue
        name, length = _launcher(words, position)
        if name is None:
            break
        launch.launchers.append(name)
        position = _options(words, lines, position + length, name, launch)
    launch.program = position
    return launch


def _launcher(words: Sequence[str], position: int) -> tuple[str | None, int]:
    """Return the launcher at a word and how many words name it."""
    name = Path(words[position]).name
    two = f"{name} {words[position + 1]}" if position + 1 < len(words) else name
    if _PYTHON.fullmatch(name):
        return "python", 1
    if words[position] in _MODULES and words[position - 1] == "-m":
        return _MODULES[words[position]], 1
    if words[position] == "accelerate.commands.accelerate_cli":
        return "accelerate launch", 2
    return (two, 2) if two in LAUNCHERS else (name, 1) if name in LAUNCHERS else (None, 0)


def _options(words: Sequence[str], lines: Sequence[int], position: int, name: str, launch: Launch) -> int:
    """Read a launcher's options; return the index of the word after them."""
    launcher = LAUNCHERS[name]
    while position < len(words) and words[position].startswith("-") and words[position] not in ("-", "--"):
        line = lines[position]
        option, equals, value = words[position].partition("=")
        position += 1
        # What follows -m is a module: a launcher, or the program
        if name == "python" and option == "-m":
            return position
        option, attached = _option_name(option, launcher)
        count = 0 if equals or attached else launcher.takes(option)
        taken = words[position : position + count]
        position += count
        argument = value if equals else attached or (" ".join(taken) if count else None)
        launch.options.append(Option(name, option, argument, line))
        if name.startswith("mpi") and option == "x" and argument and "=" in argument:
            variable, _, value = argument.partition("=")
            launch.environment[variable], launch.places[variable] = value, line
    position += position < len(words) and words[position] == "--"
    return position + launcher.words


def _option_name(word: str, launcher: Launcher) -> tuple[str, str]:
    """Return an option's name, and a value attached to its letter (``-N2``)."""
    letters = dict(launcher.short)
    if not word.startswith("--") and word[1:2] in letters and (len(word) == 2 or word[2:].isalnum()):
        return letters[word[1]], word[2:]
    return word.lstrip("-").replace("-", "_"), ""


def slurm_options(text: str) -> list[Option]:
    """Return the options of a script's ``#SBATCH`` lines before its first command."""
    headers: list[Option] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words = ["srun", *shlex.split(line.removeprefix("#SBATCH"), comments=True)]
            options = launch_of(words, [number] * len(words)).options
            headers += [replace(option, launcher="sbatch") for option in options]
    return headers


def slurm_variables(options: Sequence[Option]) -> dict[str, str]:
    """Return the variables that Slurm sets for a script with these options, as far as they are certain."""
    values = {option.name: option.value or "" for option in options}
    # --gres=gpu:a100:4: the type is left out
    devices = re.fullmatch(r"gpu:(?:\w+:)?(\d+)", values.get("gres", ""))
    nodes, on_each = values.get("nodes", ""), values.get("ntasks_per_node", "")
    tasks = str(int(nodes) * int(on_each)) if nodes.isdecimal() and on_each.isdecimal() else ""
    counts = {
        "SLURM_NNODES": values.get("nodes", ""),
        "SLURM_JOB_NUM_NODES": values.get("nodes", ""),
        "SLURM_NTASKS": values.get("ntasks", "") or tasks,
        "SLURM_NTASKS_PER_NODE": values.get("ntasks_per_node", ""),
        "SLURM_CPUS_PER_TASK": values.get("cpus_per_task", ""),
        "SLURM_GPUS_PER_NODE": values.get("gpus_per_node", ""),
        "SLURM_GPUS_ON_NODE": values.get("gpus_per_node", "") or (devices[1] if devices else ""),
    }
    return {name: count for name, count in counts.items() if count.isdecimal()}
