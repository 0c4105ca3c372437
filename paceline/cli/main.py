"""``paceline VERB …``: a table of verbs.

``--help`` is printed from the table with the standard library alone; a verb's module is imported when called.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from paceline.cli import codes
from paceline.cli.errors import print_diagnostics, reported
from paceline.core.errors import ExitCode
from paceline.core.package import PACKAGE_VERSION
from paceline.launch.program import program

if TYPE_CHECKING:
    from typer import Typer

#: verb → one line of help
VERBS = {
    "train": "train from one YAML: paceline train config.yaml training.learning_rate=1e-4 --nproc 2",
    "prepare": "tokenise and store the data ahead of training",
    "plan": "show what a training run would do here, and why, without starting it",
    "rehearse": "a run's life in minutes: start, evaluate, save, kill, resume, export; what it will cost",
    "doctor": "check this machine, the nodes of a job before it runs, or what ended a run; with remedies",
    "config": "config show CONFIG: every value and where it is set; config import: another system's config",
    "migrate": "translate a folder of LLaMA-Factory, axolotl, TRL, ms-swift or Transformers, file by file",
    "data": "data show CONFIG: rows as the model gets them, or the totals of the data, also as a picture",
    "evaluate": "measure models over the rows of a file: loss, token accuracy, metrics of their answers",
    "generate": "write a model's answers to the rows of a file",
    "chat": "chat with the model that a run has trained",
    "serve": "serve the model that a run has trained, OpenAI-compatible, on this machine",
    "checkpoints": "list, verify, compare, average, prune and convert checkpoints",
    "export": "write a run's model as a Hugging Face folder",
    "push": "push a run's model to the Hugging Face hub, with a model card",
    "plot": "draw a run's loss, accuracy, throughput and memory (PNG)",
    "runs": "table of a folder's runs; runs compare A B: config, curves, and where they part",
    "launch": "a cluster's job from one YAML: paceline launch config.yaml --on slurm --nodes 4 --submit",
    "status": "whether a run goes on, and what its scheduler says of it; also at a URL",
    "logs": "a run's log, or one rank's: paceline logs RUN 3",
    "stop": "make a run save and end, wherever it was started; no scheduler starts it again",
    "resume": "go on with a run that has ended, in the way it was started",
    "sweep": "train once for each value: paceline sweep CONFIG training.learning_rate=1e-4,3e-4",
    "watch": "a page of runs in the browser, live: curves, samples, diagnostics, plan, config, logs",
    "report": "the same page of one run as a single HTML file",
    "demo": "train a small model on two processes and see what it has learnt",
    "verify": "train a small version of the model under the strategy and under a reference, and compare them",
    "bench": "bench scaling: measure how training scales on this machine",
    "explain": "explain a diagnostic's code",
}
#: Modules and their verbs, each a function or a typer application with the verb's name
MODULES = {
    "training": ("train", "prepare", "rehearse", "verify", "sweep", "demo", "bench"),
    "planning": ("plan", "explain"),
    "doctor": ("doctor",),
    "configs": ("config", "data"),
    "new_configs": ("migrate",),
    "evaluation": ("evaluate", "generate", "chat", "serve"),
    "checkpoints": ("checkpoints", "export", "push"),
    "jobs": ("launch", "status", "logs", "stop", "resume"),
    "monitoring": ("plot", "runs", "watch", "report"),
}
STARTERS = ("demo", "rehearse", "verify", "bench", "sweep")  # they start processes of their own
OF_A_CONFIG = (
    "train",
    "plan",
    "prepare",
    "data",
    "rehearse",
    "verify",
    "sweep",
    "launch",
)  # they take KEY=VALUE of a config
HELP = ("-h", "--help", "help")
FORCES_COLOUR = ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS")  # make typer write colours without a terminal


def application_of(verb: str) -> Typer:
    """Return a verb's typer application; the verb's module is imported for it."""
    import typer

    from paceline.cli.options import PLAIN

    module = next(name for name, verbs in MODULES.items() if verb in verbs)
    target = getattr(import_module(f"paceline.cli.{module}"), verb)
    if isinstance(target, typer.Typer):
        return target
    app = typer.Typer(**PLAIN)
    app.command()(target)
    return app


@program
def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: run a verb and exit with its code."""
    sys.exit(reported(lambda: dispatch(sys.argv[1:] if arguments is None else arguments)))


def dispatch(arguments: Sequence[str]) -> int:
    """Run the verb that ``arguments`` begin with and return the exit code."""
    # Options without a verb, and unknown verbs, import nothing more
    if not arguments or arguments[0] in HELP:
        print(help_text())
        return int(ExitCode.OK if arguments else ExitCode.CONFIG)
    if arguments[0] == "--version":
        print(f"paceline {PACKAGE_VERSION}")
        return int(ExitCode.OK)
    verb, *rest = _rank_last(arguments)
    if verb not in VERBS:
        return refuse(verb)
    if verb in STARTERS:
        from paceline.cli.join import refuse_many_processes

        refuse_many_processes(f"paceline {verb}")
    import typer

    if any(name in os.environ for name in FORCES_COLOUR):
        from typer import rich_utils

        rich_utils.FORCE_TERMINAL = False  # its output is escaped, so a colour code would be printed as text
    try:
        typer.main.get_command(application_of(verb))(
            args=rest, prog_name=f"paceline {verb}"
        )  # exits by itself, with the verb's code
    except SystemExit as stop:
        cause: BaseException | None = stop
        while cause is not None:  # typer turns Ctrl-C into a silent exit
            if isinstance(cause, KeyboardInterrupt):
                raise cause from None
            if verb in OF_A_CONFIG and (option := getattr(cause, "option_name", "")):
                _explain_keys(option, rest)
            cause = cause.__cause__ or cause.__context__
        raise
    return int(ExitCode.OK)


def _explain_keys(option: str, arguments: Sequence[str]) -> None:
    """Explain how to set a config key that was written as an option, as in Transformers' programs."""
    from paceline.config.keys.valid_keys import known_names
    from paceline.config.schema import SECTIONS

    key = option.lstrip("-").replace("-", "_")
    if key.partition(".")[0] in SECTIONS or key in known_names(""):
        pairs = zip(arguments, [*arguments[1:], "VALUE"], strict=True)
        values = (
            word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == option
        )
        value = next(values, "VALUE")
        print(f"A key of the config is set without dashes, after the file: {key}={value}", file=sys.stderr)


def _rank_last(arguments: Sequence[str]) -> Sequence[str]:
    """Move a ``--local_rank=N`` before the verb behind it.

    ``deepspeed --module paceline.cli.main train …`` passes it first.
    """
    if arguments[0].startswith(("--local_rank=", "--local-rank=")):
        return [*arguments[1:], arguments[0]] if arguments[1:2] == ["train"] else arguments[1:] or arguments
    return arguments


def refuse(verb: str) -> int:
    """Print that there is no such verb, with the nearest one, and return the exit code."""
    from difflib import get_close_matches

    near = get_close_matches(verb, VERBS, n=1)
    kind = "option before the verb" if verb.startswith("-") else "verb"
    nearest = f"paceline {near[0]}" if near else f"one of: {', '.join(VERBS)}"
    print_diagnostics([codes.CLI_UNKNOWN_VERB("command line", verb, kind=kind, hint=nearest)])
    return int(ExitCode.CONFIG)


def help_text() -> str:
    """Return the text of ``paceline --help``, as wide as the terminal (60 to 120 columns)."""
    width = max(60, min(120, shutil.get_terminal_size().columns))
    most = max(map(len, VERBS)) + 1
    indent = " " * (most + 2)
    verbs = [
        textwrap.fill(line, width, initial_indent=f"  {verb:<{most}}", subsequent_indent=indent)
        for verb, line in VERBS.items()
    ]
    return "\n".join(
        [
            "Usage: paceline VERB [ARGUMENTS]",
            "",
            textwrap.fill(
                "Post-training from one YAML: a plan before the start, nothing lost during the run,"
                " checkpoints that any strategy can read.",
                width,
            ),
            "",
            "Verbs:",
            *verbs,
            "",
            "paceline VERB --help shows the arguments of a verb; paceline --version the version.",
        ]
    )


if __name__ == "__main__":
    main()
