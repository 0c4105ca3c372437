"""``paceline plan``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import Overrides, load
from paceline.cli.report import tell

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def plan(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="The YAML file; or leave it out and name --model.")
    ] = None,
    overrides: Overrides = None,
    nproc: Annotated[
        int | None, typer.Option(help="Processes on this node [default: one a GPU, one on a CPU].")
    ] = None,
    nnodes: Annotated[int | None, typer.Option(help="Nodes [default: 1].")] = None,
    hardware: Annotated[
        str | None,
        typer.Option(metavar="NxNAME|YAML", help="Plan for this hardware in place of this machine, e.g. 16xH100."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FOLDER",
            help="Without a config: a model of the built-in list, or a folder with a config.json.",
        ),
    ] = None,
    seq_len: Annotated[int, typer.Option(min=1, help="With --model: tokens of a row.")] = 4096,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="With --model: rows an optimizer step [default: 128, two a card if that is more]."),
    ] = None,
    lora: Annotated[
        int | None, typer.Option(min=1, metavar="R", help="With --model: LoRA of this rank on all linear layers.")
    ] = None,
    bits: Annotated[
        int | None, typer.Option(min=4, max=4, help="With --lora: 4, the base packed to 4 bits (QLoRA).")
    ] = None,
    algorithm: Annotated[str, typer.Option(help="With --model: sft, reward, dpo, ppo or grpo.")] = "sft",
    picture: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw memory and speed by strategy into this file.")
    ] = None,
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger", help="What plans predicted and runs measured on this machine, and what follows from it."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The whole plan as JSON.")] = False,
) -> None:
    """Show what a training would do, how much memory it needs and how fast it will be, and why. Starts nothing, imports no torch."""
    from paceline.cli.forecast import forecast_of_model, forecast_of_plan, needs_one_subject
    from paceline.cli.ledger import expected_here, told_ledger
    from paceline.plan.predict.report import text

    if ledger:
        typer.echo(told_ledger(as_json), nl=as_json)
        return
    if config is None:
        told = forecast_of_model(model, hardware, seq_len, rows, lora, bits, algorithm)
        typer.echo(json.dumps(told.to_json(), indent=2, ensure_ascii=False) if as_json else text(told), nl=as_json)
    else:
        from paceline.cli.planned import Asked, planned
        from paceline.plan.catalogue import cluster_of
        from paceline.plan.explain import explain

        needs_one_subject(model)
        asked = Asked(nproc=nproc, nnodes=nnodes)
        loaded = load(config, overrides, asked.flags())
        cluster = cluster_of(hardware) if hardware else None
        made, warnings = planned(loaded, cluster=cluster)
        told_of = forecast_of_plan(made, cluster)
        tell((*loaded.notes, *warnings))
        if as_json:
            found = made.to_json() | ({"forecast": told_of.to_json()} if told_of else {})
            typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        else:
            typer.echo(
                explain(made) + ("\n" + text(told_of) if told_of else "" if cluster else expected_here(made)), nl=False
            )
        if told_of is None:
            return
        told = told_of
    if picture is not None:
        from paceline.watch.forecast_picture import draw

        typer.echo(f"picture: {draw(told, picture)}", err=True)
