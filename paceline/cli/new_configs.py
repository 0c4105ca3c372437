"""New configs: ``paceline config init`` asks a few questions; ``paceline migrate`` translates a folder.

``config init`` shows the plan of the commented YAML that it writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import codes
from paceline.cli.options import AsJson
from paceline.config.import_export.write_yaml import scalar
from paceline.config.migrations import KEY, newest
from paceline.core.errors import ConfigError, ExitCode
from paceline.core.plugins.tables import ALGORITHMS


@dataclass(frozen=True)
class InitQuestion:
    """A question: our key, its text, and the default answer ("": none)."""

    key: str
    text: str
    default: str = ""


#: What `accelerate config` asks (devices, nodes, precision, sharding) and what model and data need
QUESTIONS = (
    InitQuestion("model.name_or_path", "Model: a folder or a hub name"),
    InitQuestion("data.train", "Training data: a file, a folder or a hub name"),
    InitQuestion("data.max_length", "Longest row in tokens", "2048"),
    InitQuestion("training.algorithm", f"Algorithm ({', '.join(ALGORITHMS.names())})", "sft"),
    InitQuestion("training.per_device_train_batch_size", "Rows per device and micro-batch", "8"),
    InitQuestion("training.gradient_accumulation_steps", "Micro-batches per optimizer step", "1"),
    InitQuestion("training.num_train_epochs", "Epochs", "3"),
    InitQuestion("training.learning_rate", "Learning rate", "5e-5"),
    InitQuestion("training.mixed_precision", "Precision (auto, bf16, fp16, no)", "auto"),
    InitQuestion("training.distributed_strategy", "Strategy (auto, ddp, fsdp, zero2, zero3, …)", "auto"),
    InitQuestion("lora.r", "Rank of LoRA adapters; 0 trains all weights", "0"),
    InitQuestion("launch.nproc", "Processes on this machine; 0: one per accelerator", "0"),
    InitQuestion("launch.nnodes", "Machines", "1"),
)
_UNSET = ("lora.r", "launch.nproc")  # 0: the key is left out


def init(to: Path, flags: Mapping[str, str]) -> None:
    """Write a new YAML from answers: the flags', else typed ones. Raises ConfigError.

    With a closed or redirected stdin it asks nothing: defaults apply, and keys without one must be given.
    """
    if to.exists():
        raise ConfigError(codes.CLI_OPTION("the file exists already", str(to), str(to), "name another file"))
    unknown = [key for key in flags if key not in {question.key for question in QUESTIONS}]
    if unknown:
        keys = ", ".join(question.key for question in QUESTIONS)
        raise ConfigError(
            codes.CLI_OPTION("init has no such question", "KEY=VALUE", unknown[0], f"one of: {keys}")
        )
    answer_to: Callable[[InitQuestion], str] = (
        _typed if sys.stdin is not None and sys.stdin.isatty() else _needed
    )
    answers = {question.key: flags.get(question.key) or answer_to(question) for question in QUESTIONS}
    to.write_text(_yaml(answers), encoding="utf-8")
    typer.echo(f"wrote {to}", err=True)


def _typed(question: InitQuestion) -> str:
    return str(typer.prompt(question.text, default=question.default or None, err=True))


def _needed(question: InitQuestion) -> str:
    if not question.default:
        message = f"stdin is no terminal, so nothing can be asked: {question.text}"
        raise ConfigError(codes.CLI_OPTION(message, "config init", "", f"{question.key}=…"))
    return question.default


def _yaml(answers: Mapping[str, str]) -> str:
    """Return the YAML: one commented line for each answer."""
    lines = [
        "# written by `paceline config init`; docs/reference/config.md describes every key",
        f"{KEY}: {newest()}",
        "",
    ]
    section = ""
    for question in QUESTIONS:
        name, _, key = question.key.partition(".")
        answer = answers[question.key]
        if question.key in _UNSET and answer == "0":
            continue
        if name != section:
            lines.append(f"{name}:")
            section = name
        lines.append(f"  {key}: {_value(answer)}  # {question.text}")
    return "\n".join(lines) + "\n"


def _value(answer: str) -> str:
    """Return an answer as YAML: numbers unchanged, texts quoted if needed."""
    from paceline.config.yaml_text.scalars import parse_number

    return answer if parse_number(answer) is not None else scalar(answer)


def migrate(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A folder with scripts and configs, or one of them.")
    ],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Write each job's YAML there.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that exist in --to.")] = False,
    as_json: AsJson = False,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Train a shrunken copy for three steps with both programs, and compare the losses.",
        ),
    ] = False,
    python: Annotated[
        Path | None,
        typer.Option("--python", help="Python of the other program's environment, for --prove."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List every key, also those that are kept.")] = False,
) -> None:
    """Translate a folder of another program: scripts, configs, data descriptions, manifests.

    Reports file by file what is kept, what differs and what is lost, with our YAML and our command for each
    job. Nothing of the folder is executed. Exit code 1: a setting that has an effect was lost.
    """
    from paceline.api.proving import migrate as migrated
    from paceline.api.proving import prove as proven
    from paceline.config.import_export.folders.report import report_json, report_text

    if prove and python is None:
        message, hint = "a proof asks the other program", "--python /path/of/its/environment/bin/python"
        raise ConfigError(codes.CLI_OPTION(message, "--prove", "", hint))
    migration = migrated(path, to=to, force=force)
    if not as_json:
        typer.echo(report_text(migration, to, every=every))
    proofs = []
    for proof in proven(migration, python) if prove and python else ():
        proofs.append(proof)
        if not as_json:
            typer.echo(f"\n{proof.text()}")
    if as_json:
        report = report_json(migration, to)
        report |= {"proofs": [proof.to_json() for proof in proofs]} if prove else {}
        typer.echo(json.dumps(report, indent=1, ensure_ascii=False))
    differs = any(proof.difference is not None and not proof.agrees for proof in proofs)
    raise typer.Exit(int(ExitCode.FAILED if migration.loses or differs else ExitCode.OK))
