"""``paceline config``: init, show, check, diff, schema, import, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.errors import print_diagnostics
from paceline.cli.options import ConfigFile, Overrides
from paceline.launch.preflight.load_config import load

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Configs: show one, import or export another system's.",
)


@app.callback()
def root() -> None:
    """Look at what a YAML comes to."""


@app.command()
def show(
    config: ConfigFile,
    overrides: Overrides = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The effective config as JSON, without the places.")
    ] = False,
) -> None:
    """Print each effective value with the layer and file:line that set it."""
    import json

    from paceline.config.render.effective_values import render_show

    loaded = load(config, overrides)
    print_diagnostics(loaded.notes)
    typer.echo(
        json.dumps(loaded.config.to_json(), indent=2, ensure_ascii=False) if as_json else render_show(loaded)
    )


@app.command()
def check(config: ConfigFile, overrides: Overrides = None) -> None:
    """Read a YAML and apply every rule; print what is wrong, or that it is fine (no machine or data)."""
    loaded = load(config, overrides)
    print_diagnostics(loaded.notes)
    typer.echo(f"{config}: fine (schema version {loaded.version})")


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A YAML file.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Print the keys whose effective values differ; exit code 1 if there are any."""
    import json

    from paceline.config.render import diff

    found = diff.differences(load(first, None, ruled=False), load(second, None, ruled=False))
    text = diff.as_text(found, (str(first), str(second)))
    typer.echo(json.dumps(diff.as_json(found), indent=2, ensure_ascii=False) if as_json else text)
    raise typer.Exit(int(bool(found)))


@app.command()
def schema() -> None:
    """Print the JSON schema of a config, for editors (see docs/guide.md)."""
    import json

    from paceline.config.render.json_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=1, ensure_ascii=False))


@app.command(name="import", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
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
                "Of a file that names no trainer. TRL: sft, dpo, kto, reward, grpo, rloo;"
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
    """Translate another system's config, its defaults written out, and say what becomes of each key."""
    from paceline.cli.configs.config_import import import_file

    import_file(file, context.args, system, algorithm, to, as_json, every)


@app.command()
def export(
    config: ConfigFile,
    overrides: Overrides = None,
    to: Annotated[
        str, typer.Option("--to", help="llamafactory, trl, axolotl, accelerate or deepspeed.")
    ] = "trl",
) -> None:
    """Print the effective config as another system's file; what it cannot say is listed at its end."""
    from paceline.config.import_export.export_config import export_text

    loaded = load(config, overrides)
    typer.echo(export_text(loaded, to), nl=False)


@app.command()
def init(
    to: Annotated[Path, typer.Argument(metavar="FILE", help="The new YAML file.")],
    answers: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Answers given here.")
    ] = None,
    show_plan: Annotated[
        bool, typer.Option("--plan/--no-plan", help="Show the plan of the new file.")
    ] = True,
) -> None:
    """Ask what model, data and machine need, write a commented YAML and show its plan."""
    from paceline.cli.configs import config_init
    from paceline.cli.planning.plan import plan

    config_init.init(to, dict(answer.partition("=")[::2] for answer in answers or ()))
    if show_plan:
        plan(to)
