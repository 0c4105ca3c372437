"""Entry points with the distributed training guide's flags: main.py, run_distributed.py, prepare_datasets.py.

Under a launcher (torchrun, torch.distributed.launch, accelerate, mpirun, srun) main.py becomes one rank of
the job. Otherwise it starts a job of one process, as ``paceline train --nproc 1`` does, unless the config
sets ``launch.nproc``. It takes LLaMA-Factory's flags, too (``main.py --stage sft --do_train …``), imported
as ``paceline config import`` does; the YAML that they become is kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from paceline.cli import codes
from paceline.cli.errors import reported
from paceline.cli.join import become_rank, drives_a_node, on_its_node, refuse_many_processes
from paceline.cli.options import PLAIN, LauncherOption
from paceline.cli.start import start
from paceline.config.keys.aliases import ALIASES
from paceline.config.schema import SECTIONS, homes_of
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.package import cache_folder
from paceline.core.plugins.tables import ALGORITHMS
from paceline.launch.environment.job_managers import started_by
from paceline.launch.process_spec import LaunchOptions
from paceline.runlog.lines import VERBOSE

if TYPE_CHECKING:
    from paceline.config.import_export.commands.command_line import Command
    from paceline.config.import_export.verdicts import Finding

_THEIRS = ("stage", "do_train", "model_name_or_path")  # one of these says whose flags they are
# flags of main.py that LLaMA-Factory does not have
_OURS = ("config", "mode", "algorithm", "resume", "deepspeed_config")
_OVERRIDE = re.compile(rf"({'|'.join(SECTIONS)})\.[\w.]+=")


@dataclass(frozen=True)
class Flags:
    """The YAML that the flags became, our own ``key=value`` words, and the launcher's rank on this node."""

    config: Path
    overrides: tuple[str, ...]
    local_rank: int | None


def are_llamafactory(arguments: Sequence[str]) -> bool:
    """Whether these arguments of main.py are LLaMA-Factory's."""
    return any(_name(word) in _THEIRS for word in arguments)


def from_llamafactory(arguments: Sequence[str], environ: Mapping[str, str]) -> Flags:
    """Write the YAML of the flags, and report on stderr (once a node) the flags that are not kept as they
    are.

    Raises ConfigError, before anything is written, for flags that cannot be kept.
    """
    from paceline.config.import_export.commands.command_line import read_command
    from paceline.config.import_export.import_config import import_command
    from paceline.config.import_export.verdicts import KeyVerdict, as_text
    from paceline.config.import_export.write_yaml import accepted, left_over
    from paceline.rules import of_config

    command = read_command(["main.py", *(word for word in arguments if not _OVERRIDE.match(word))])
    local_rank = command.data.pop("local_rank", None)
    _checked(command)
    imported = import_command(command, "llamafactory")
    written, refused = accepted(imported, "LLaMA-Factory's flags, as main.py has read them", of_config)
    lost = [finding for finding in imported.of(KeyVerdict.LOST) if finding.line]
    if lost or refused:
        # The start checks the rules, with the machine known; where there is none, they are checked here
        others = refused or left_over(written.text, of_config)
        raise ConfigError(*(_not_kept(finding) for finding in lost), *others)
    file = _kept(written.text, cache_folder(environ) / "imported")
    if environ.get("LOCAL_RANK", "0") == "0" and local_rank in (None, 0):
        print(f"{as_text(imported)}\nas a config: {file}", file=sys.stderr, flush=True)
    overrides = tuple(word for word in arguments if _OVERRIDE.match(word))
    return Flags(file, overrides, local_rank if isinstance(local_rank, int) else None)


def _checked(command: Command) -> None:
    """Raise ConfigError for a command line that also has main.py's own flags, or that would not train."""
    names = {*command.data, *(["config"] if command.config else [])}
    mixed = [name for name in _OURS if name in names]
    if mixed:
        raise ConfigError(
            codes.CLI_TWO_COMMAND_LINES(
                "main.py",
                ", ".join(f"--{name}" for name in (*mixed, *(key for key in _THEIRS if key in command.data))),
            )
        )
    if command.data.get("do_train") is not True:
        others = [f"--{key}" for key in ("do_eval", "do_predict", "do_train") if key in command.data]
        raise ConfigError(
            codes.CLI_MODE(
                "without --do_train these flags train nothing",
                "main.py",
                ", ".join(others) or "no --do_train",
                "add --do_train (evaluation is part of it: --eval_strategy)",
            )
        )


def _not_kept(finding: Finding) -> Diagnostic:
    from paceline.config.source import shown

    return codes.CLI_FLAG_NOT_KEPT(
        f"main.py, argument {finding.line - 1}",
        f"--{finding.key} {shown(finding.key, finding.value, 60)}",
        key=finding.key,
        says=finding.says,
    )


def _name(word: str) -> str:
    return word[2:].partition("=")[0].replace("-", "_") if word.startswith("--") else ""


def _kept(text: str, folder: Path) -> Path:
    """Write the YAML under a name made from its content, atomically, so that ranks may write it at once."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"llamafactory-{hashlib.sha256(text.encode()).hexdigest()[:16]}.yaml"
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False, encoding="utf-8") as part:
        part.write(text)
    os.replace(part.name, file)
    return file


ConfigOption = Annotated[Path, typer.Option("--config", metavar="YAML", help="The YAML file.")]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values that override the YAML.")
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algorithm", help=f"{', '.join(ALGORITHMS.names())}, or module:SPEC: overrides training.algorithm."
    ),
]
ResumeOption = Annotated[
    str | None,
    typer.Option("--resume", "--resume_from_checkpoint", help="latest, auto, or a checkpoint's path."),
]
DeepSpeedOption = Annotated[
    str | None,
    typer.Option(
        "--deepspeed_config", "--deepspeed-config", metavar="JSON", help="Overrides training.deepspeed."
    ),
]

#: main.py's own flags
_FLAGS = (
    *("config", "mode", "algorithm", "resume", "resume_from_checkpoint", "deepspeed_config", "local_rank"),
    *("deepspeed", "help"),
)
# Patterns of launch options that main.py has only as config keys, and of what follows a value.
_NPROC, _PLACES, _END = (
    r"nproc(?:[-_]per[-_]node)?",
    r"nnodes|node[_-]rank|master[_-]addr|master[_-]port",
    r"(?=[,;)]|\s|$)",
)


def main() -> None:
    """``main.py``, with its own flags or LLaMA-Factory's."""
    if are_llamafactory(sys.argv[1:]):
        sys.exit(reported(_train_llamafactory))
    sys.argv[1:] = with_its_file(sys.argv[1:])
    if (code := reported(lambda: check_flags(sys.argv[1:]))) != 0:
        sys.exit(code)
    _run(main_command, "main.py")


def run_distributed() -> None:
    """``scripts/run_distributed.py``."""
    _run(run_distributed_command, "run_distributed.py")


def prepare_datasets() -> None:
    """``prepare_datasets.py``."""
    _run(prepare_datasets_command, "prepare_datasets.py")


def main_command(
    overrides: OverridesArgument = None,
    config: ConfigOption = Path("config.yaml"),
    mode: Annotated[str, typer.Option(help="train")] = "train",
    algorithm: AlgorithmOption = None,
    resume: ResumeOption = None,
    deepspeed_config: DeepSpeedOption = None,
    local_rank: Annotated[
        int | None,
        typer.Option("--local-rank", "--local_rank", help="Set by torch.distributed.launch and deepspeed."),
    ] = None,
    deepspeed: Annotated[
        bool,
        typer.Option(
            "--deepspeed", help="Accepted for compatibility: training.distributed_strategy is used."
        ),
    ] = False,
) -> None:
    """Train: under a launcher as one rank of its job, otherwise as one process."""
    settings = _settings(mode, overrides, deepspeed_config)
    _train(config, settings, LaunchOptions(algorithm=algorithm, resume=resume), local_rank)


def _train(config: Path, settings: list[str], options: LaunchOptions, local_rank: int | None) -> NoReturn:
    if started_by(os.environ) is None:
        sys.exit(start(config, settings, options, one_process=True))
    become_rank(config, settings, options, local_rank)


def _train_llamafactory() -> NoReturn:
    flags = from_llamafactory(sys.argv[1:], os.environ)
    try:
        _train(flags.config, list(flags.overrides), LaunchOptions(), flags.local_rank)
    except ConfigError as error:
        raise ConfigError(*(in_words_of("main.py", finding) for finding in error.diagnostics)) from error


def run_distributed_command(
    overrides: OverridesArgument = None,
    config: ConfigOption = Path("config.yaml"),
    nproc_per_node: Annotated[
        int | None, typer.Option("--nproc_per_node", "--nproc-per-node", help="Processes on this node.")
    ] = None,
    nnodes: Annotated[int | None, typer.Option(help="Nodes [default: 1].")] = None,
    node_rank: Annotated[
        int | None, typer.Option("--node_rank", "--node-rank", help="This node's number, from 0.")
    ] = None,
    master_addr: Annotated[
        str | None, typer.Option("--master_addr", "--master-addr", help="Address of node 0.")
    ] = None,
    master_port: Annotated[
        int | None, typer.Option("--master_port", "--master-port", help="A free port on node 0.")
    ] = None,
    algorithm: AlgorithmOption = None,
    resume: ResumeOption = None,
    deepspeed_config: DeepSpeedOption = None,
    mode: Annotated[str, typer.Option(help="train")] = "train",
    launcher: LauncherOption = None,
    use_torchrun: Annotated[
        bool,
        typer.Option(
            "--use_torchrun",
            "--use-torchrun",
            help="Start the processes with torchrun instead of with Paceline itself.",
        ),
    ] = False,
) -> None:
    """Start the processes of this node and wait for them; run the same command on the other nodes."""
    settings = _settings(mode, overrides, deepspeed_config)
    options = LaunchOptions(
        nproc_per_node,
        nnodes,
        node_rank,
        master_addr,
        master_port,
        algorithm,
        resume,
        "torchrun" if use_torchrun else launcher,
    )
    if not drives_a_node(options):
        refuse_many_processes("scripts/run_distributed.py")
    raise typer.Exit(start(config, settings, on_its_node(options)))


def prepare_datasets_command(
    overrides: OverridesArgument = None, config: ConfigOption = Path("config.yaml")
) -> None:
    """Tokenise and store the data ahead of training."""
    from paceline.cli.training import prepare_data

    raise typer.Exit(prepare_data(config, overrides or []))


def with_its_file(words: Sequence[str]) -> list[str]:
    """Return main.py's words with Transformers' `--deepspeed ds.json` replaced by `--deepspeed_config`."""
    arguments: list[str] = []
    for word, after in zip(words, [*words[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        file = value if equals else after
        has_file = flag == "--deepspeed" and (file.endswith(".json") or file.startswith("{"))
        arguments.append(word.replace("--deepspeed", "--deepspeed_config", 1) if has_file else word)
    return arguments


def check_flags(words: Sequence[str]) -> None:
    """Raise ConfigError for flags that are keys of a config here, each with the KEY=VALUE to write."""
    findings = []
    for word, after in zip(words, [*words[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("-", "_")
        if not flag.startswith("--") or name in _FLAGS:
            continue
        if not equals:
            value = "true" if after.startswith("--") or not after else after
        if override := _as_override(name, value):
            message = f"main.py has no option {flag}: what is trained stands in the YAML, or in KEY=VALUE"
            findings.append(codes.CLI_OPTION(message, "main.py", f"{flag} {value}", override))
    if findings:
        raise ConfigError(*findings)


def _as_override(name: str, value: str) -> str:
    if name == "template":
        return (
            "leave it out: the tokenizer's own template is used; model.chat_template=… sets another (beside"
            " --stage and --do_train, LLaMA-Factory's flags, --template NAME is read as there)"
        )
    homes = [home for home in ("training", "model", "data", "lora") if home in homes_of(name)]
    path = ALIASES[name].to if name in ALIASES else f"{homes[0]}.{name}" if homes else ""
    return f"{path}={value}" if path else ""


def _settings(mode: str, overrides: Sequence[str] | None, deepspeed_config: str | None) -> list[str]:
    """Return what overrides the YAML. Raises ConfigError unless ``mode`` is ``train``, the only mode."""
    if mode != "train":
        remedy = "use --mode train (evaluation is part of it: training.eval_strategy)"
        raise ConfigError(codes.CLI_MODE("there is only one mode", "--mode", mode, remedy))
    file = [] if deepspeed_config is None else [f"training.deepspeed={deepspeed_config}"]
    return [*(overrides or ()), *file]


def _run(command: Callable[..., Any], name: str) -> None:
    app = typer.Typer(**PLAIN)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(command)

    def run() -> None:
        try:
            app(prog_name=name)
        except ConfigError as error:
            raise ConfigError(*(in_words_of(name, finding) for finding in error.diagnostics)) from error

    sys.exit(reported(run))


def in_words_of(name: str, finding: Diagnostic) -> Diagnostic:
    """Return ``finding`` with the option names of script ``name``.

    Neither script has ``--verbose``, so it becomes its variable. main.py has no options for the numbers of
    processes and nodes, so they become config keys or a torchrun command.
    """

    def in_their_words(text: str) -> str:
        text = re.sub(rf"--verbose{_END}", f"{VERBOSE}=1", text)
        if name != "main.py":
            return re.sub(r"(?<![\w-])--nproc(?![\w-])", "--nproc_per_node", text)
        text = re.sub(rf"--launcher(?: [a-z0-9]+)?{_END}", "scripts/run_distributed.py", text)
        text = re.sub(
            rf"(?<!torchrun )--{_NPROC} (\S+?){_END}", r"torchrun --nproc_per_node \1 main.py …", text
        )
        text = re.sub(rf"(?<!torchrun )--({_NPROC}|{_PLACES}) (\S+?){_END}", _as_key, text)
        return re.sub(rf"(?<!torchrun )--({_NPROC}|{_PLACES})(?![\w-])", _as_key, text)

    return replace(
        finding,
        where=in_their_words(finding.where),
        what=in_their_words(finding.what),
        hint=in_their_words(finding.hint),
    )


def _as_key(option: re.Match[str]) -> str:
    key = f"launch.{option[1].replace('-', '_').removesuffix('_per_node')}"
    return f"{key}={option[2]}" if option.lastindex == 2 else key
