"""``paceline config``: init, show, check, diff, schema, import, export; and ``paceline data show``."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import codes
from paceline.cli.errors import print_diagnostics
from paceline.cli.options import ConfigFile, Overrides, group
from paceline.cli.process import call, call_on_data, words
from paceline.core.errors import ConfigError, ExitCode
from paceline.launch.preflight.load_config import load

if TYPE_CHECKING:
    from paceline.config.import_export.targets.given import Given
    from paceline.config.load import Loaded

config = group("Configs: show one, import or export another system's.")
data = group("Look at the data of a YAML.")


def _print_json(value: Any, indent: int = 2) -> None:
    typer.echo(json.dumps(value, indent=indent, ensure_ascii=False))


@config.command()
def show(
    config: ConfigFile,
    overrides: Overrides = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The effective config as JSON, without the sources.")
    ] = False,
) -> None:
    """Print each effective value with the layer and file:line that set it."""
    from paceline.config.render.effective_values import render_show

    loaded = load(config, overrides)
    print_diagnostics(loaded.notes)
    if as_json:
        _print_json(loaded.config.to_json())
    else:
        typer.echo(render_show(loaded))


@config.command()
def check(config: ConfigFile, overrides: Overrides = None) -> None:
    """Read a YAML and apply every rule; print what is wrong, or that it is fine (no machine or data)."""
    loaded = load(config, overrides)
    print_diagnostics(loaded.notes)
    typer.echo(f"{config}: fine (schema version {loaded.version})")


@config.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A YAML file.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Print the keys whose effective values differ; exit code 1 if there are any."""
    from paceline.config.render import effective_values

    differences = effective_values.differences(
        load(first, None, ruled=False), load(second, None, ruled=False)
    )
    if as_json:
        _print_json(effective_values.as_json(differences))
    else:
        typer.echo(effective_values.as_text(differences, (str(first), str(second))))
    raise typer.Exit(int(bool(differences)))


@config.command()
def schema() -> None:
    """Print the JSON schema of a config, for editors (see docs/how-to/configure.md)."""
    from paceline.config.render.json_schema import json_schema

    _print_json(json_schema(), indent=1)


@config.command(name="import", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def import_(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A config, or a command line such as `trl sft --packing true`."),
    ],
    system: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="llamafactory, trl, axolotl, accelerate, deepspeed, hf or swift [default: by its keys].",
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            help=(
                "For a file that names no trainer. TRL: sft, dpo, kto, reward, grpo, rloo;"
                " ms-swift: sft, pt, rlhf."
            ),
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Write the YAML to this new file [default: stdout].")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The verdict on every key, and the YAML, as JSON.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Report every key, not only those that are not kept.")
    ] = False,
) -> None:
    """Translate another system's config, write out its defaults, and report what becomes of each key."""
    import_file(file, context.args, system, algorithm, to, as_json=as_json, every=every)


@config.command()
def export(
    config: ConfigFile,
    overrides: Overrides = None,
    to: Annotated[
        str, typer.Option("--to", help="llamafactory, trl, axolotl, swift, accelerate or deepspeed.")
    ] = "trl",
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write it to this new file, next to the rows, rewards and initial weights that it needs."
        ),
    ] = None,
) -> None:
    """Print the effective config as another system's file; a list at its end shows what is lost."""
    from paceline.config.import_export.targets.export_config import JOB_FILES, export_config, export_text

    loaded = load(config, overrides)
    if to in JOB_FILES:
        files, text = dict[str, str](), export_text(loaded, to)
    else:
        exported = export_config(loaded, to, _given(loaded, to, output))
        files, text = exported.files, exported.text()
    if output is None:
        typer.echo(text, nl=False)
        for name, content in files.items():
            typer.echo(f"next to it, as {name} (--output writes both):\n{content}", err=True)
        return
    for name, content in {output.name: text, **files}.items():
        _write_new(output.parent / name, content, "--output")
        typer.echo(f"wrote {output.parent / name}")


def _given(loaded: Loaded, to: str, output: Path | None) -> Given:
    """Return an export's facts about this machine; with ``output`` also write rows and initial weights."""
    from paceline.config.import_export.targets.export_config import ROWS_WANTED, check_exportable
    from paceline.config.import_export.targets.given import Given
    from paceline.plan.features.precision import choose_precision
    from paceline.plan.hardware.probe import probe_hardware

    settings, model = loaded.config.training, loaded.config.model
    check_exportable(loaded.config, to)
    hardware = probe_hardware(os.environ, use_cpu=settings.use_cpu)
    computed = choose_precision(settings.mixed_precision, hardware, bf16_weights=settings.pure_bf16).compute
    given = Given({"bfloat16": "bf16", "float16": "fp16"}.get(computed, "no"))
    if output is None:
        return given
    rows = (
        output.with_name(f"{output.stem}_rows")
        if to in ROWS_WANTED and ROWS_WANTED[to](loaded.config)
        else None
    )
    first = output.with_name(f"{output.stem}_model") if model.config is not None else None
    form = _hand_over(loaded, to, rows, first) if rows or first else ""
    return replace(
        given,
        folder=str(output.parent),
        stem=output.stem,
        rows=str(rows or ""),
        form=form,
        model=str(first or ""),
    )


def _hand_over(loaded: Loaded, to: str, rows: Path | None, model: Path | None) -> str:
    """Write rows and initial weights in a separate process; return the rows' format."""
    for made in filter(None, (rows, model)):
        if made.exists():
            remedy = "name another file, or remove this folder"
            raise ConfigError(codes.CLI_OPTION("the folder exists already", "--output", str(made), remedy))
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        described, found = Path(folder) / "config.json", Path(folder) / "found.json"
        described.write_text(json.dumps(loaded.config.to_json()), encoding="utf-8")
        options = words(config_json=described, program=to, rows=rows, model=model, to=found)
        code = call("paceline.training.hand_over", *options)
        if code:
            raise typer.Exit(code)
        return str(json.loads(found.read_text(encoding="utf-8"))["form"])


@config.command()
def init(
    to: Annotated[Path, typer.Argument(metavar="FILE", help="The new YAML file.")],
    answers: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values that init then does not ask for.")
    ] = None,
    show_plan: Annotated[
        bool, typer.Option("--plan/--no-plan", help="Show the plan of the new file.")
    ] = True,
) -> None:
    """Ask what model, data and machine need, write a commented YAML and show its plan."""
    from paceline.cli import new_configs
    from paceline.cli.planning import plan

    new_configs.init(to, dict(answer.partition("=")[::2] for answer in answers or ()))
    if show_plan:
        plan(to)


def import_file(
    file: str,
    arguments: Sequence[str],
    system: str | None,
    algorithm: str | None,
    to: Path | None,
    *,
    as_json: bool,
    every: bool,
) -> None:
    """Print or write the imported YAML; the report goes to stderr, or into the JSON.

    ``file`` with ``arguments`` is a command line of the system (``llamafactory-cli train --stage sft …``).
    Raises ConfigError.
    """
    from paceline.config.import_export.commands.command_line import is_command, read_command
    from paceline.config.import_export.commands.python_script import read_script
    from paceline.config.import_export.import_config import SYSTEMS, import_command, import_config
    from paceline.config.import_export.verdicts import as_json as to_json
    from paceline.config.import_export.verdicts import as_text
    from paceline.config.import_export.write_yaml import accepted, left_over
    from paceline.rules import of_config

    if system is not None and system not in SYSTEMS:
        raise ConfigError(
            codes.CLI_OPTION("there is no such system", "--from", system, f"one of: {', '.join(SYSTEMS)}")
        )
    if Path(file).suffix == ".py" and Path(file).is_file() and not arguments:
        imported = import_command(read_script(file), system, algorithm)
    elif arguments or is_command(file):
        imported = import_command(read_command([file, *arguments]), system, algorithm)
    else:
        imported = import_config(file, system, algorithm)
    source = f"imported by `paceline config import` from {imported.file} ({imported.system})"
    written, refused = accepted(imported, source, of_config)
    if to is not None:
        _write_new(to, written.text)
    if as_json:
        _print_json(to_json(imported, written.text))
    else:
        if to is None:
            typer.echo(written.text, nl=False)
        typer.echo(as_text(imported, every=every), err=True)
    problems = refused or left_over(written.text, of_config)
    print_diagnostics(
        replace(item, where=item.where.replace("imported.yaml", str(to))) if to else item for item in problems
    )
    if problems:
        raise typer.Exit(int(ExitCode.CONFIG))
    if (lost := imported.lost_algorithm()) is not None:
        print_diagnostics(
            [codes.CLI_ALGORITHM_LOST(f"{imported.file}:{lost.line}", f"{lost.key}: {lost.value}")]
        )
        raise typer.Exit(int(ExitCode.FAILED))


def _write_new(to: Path, text: str, option: str = "--to") -> None:
    """Write a new file. Raises ConfigError if there is one."""
    try:
        with to.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        remedy = "name another file, or remove this one"
        raise ConfigError(codes.CLI_OPTION("the file exists already", option, str(to), remedy)) from None


@data.command("show")
def _show_data(
    config: ConfigFile,
    overrides: Overrides = None,
    row: Annotated[
        int | None, typer.Option(min=1, help="Print this row (from 1) as the model gets it, not the totals.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows to print from --row on.")] = 1,
    dataset: Annotated[int, typer.Option(min=1, help="Which data set of the list (from 1).")] = 1,
    evaluation: Annotated[bool, typer.Option("--eval", help="Rows of data.eval, not of data.train.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The totals as JSON.")] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Draw the totals to this PNG; with --row, write its images into this folder, as the model"
            " gets them.",
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Where the prepared data are kept [default: data.cache_dir, $PACELINE_CACHE]."),
    ] = None,
) -> None:
    """Print rows with the tokens that carry loss in colour, or the totals of all data.

    The totals are of the prepared data (lengths, share with loss, truncated, left out, duplicates, unused
    fields); data that are not prepared yet are prepared first.
    """
    loaded = load(config, overrides or [])
    print_diagnostics(loaded.notes)
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        totals = Path(folder) / "totals.json"
        shown = {"row": row, "rows": rows, "to": to if row is not None else None}
        drawn = to and totals
        options = words(dataset=dataset, eval=evaluation, json=as_json, totals=drawn, **shown)
        code = call_on_data("paceline.data.preview", loaded, cache, *options)
        if code == 0 and to is not None and row is None:
            length = str(loaded.config.data.max_length)
            code = call("paceline.watch.summary_plots", "lengths", str(to), str(totals), length)
        raise typer.Exit(code)
