"""``paceline plan``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.errors import print_diagnostics
from paceline.cli.options import Overrides
from paceline.core.plugins.tables import ALGORITHMS
from paceline.launch.preflight.load_config import load, load_to_start

if TYPE_CHECKING:
    from paceline.cli.planning.simulate import SimulationResult
    from paceline.plan.cost.report import Forecast

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="The YAML file; or leave it out and name --model.")
]
Nproc = Annotated[
    int | None, typer.Option(help="Processes on this node [default: one per GPU, one on a CPU].")
]
Nnodes = Annotated[int | None, typer.Option(help="Nodes [default: 1].")]
HardwareName = Annotated[
    str | None,
    typer.Option(metavar="NxNAME|YAML", help="Plan for this hardware instead of this machine, e.g. 16xH100."),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FOLDER",
        help="Without a config: a model of the built-in list, or a folder with a config.json.",
    ),
]
SeqLen = Annotated[int, typer.Option(min=1, help="With --model: tokens per row.")]
Rows = Annotated[
    int | None,
    typer.Option(
        min=1, help="With --model: rows per optimizer step [default: 128, or two per device if that is more]."
    ),
]
LoraRank = Annotated[
    int | None, typer.Option(min=1, metavar="R", help="With --model: LoRA of this rank on all linear layers.")
]
Bits = Annotated[
    int | None, typer.Option(min=4, max=4, help="With --lora: 4, the base model quantised to 4 bits (QLoRA).")
]
Algorithm = Annotated[
    str, typer.Option(help=f"With --model: {', '.join(ALGORITHMS.names())}, or module:SPEC.")
]
Tokens = Annotated[
    float | None,
    typer.Option(min=1, help="With --model: tokens of the complete training, to predict the total time."),
]
Simulate = Annotated[
    bool,
    typer.Option(
        "--simulate",
        help=(
            "Also run the real module on fake tensors: exact states, activations, collectives. Needs torch."
        ),
    ),
]
Picture = Annotated[
    Path | None, typer.Option(metavar="PNG", help="Draw memory and speed by strategy to this file.")
]
Ledger = Annotated[
    bool,
    typer.Option(
        "--ledger",
        help="What plans predicted and runs measured on this machine, and the resulting corrections.",
    ),
]
Imports = Annotated[
    bool,
    typer.Option(
        "--imports/--no-imports",
        help=(
            "Also check what only an import can show (a reward function, a compile backend, the"
            " model's class), in a separate process."
        ),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="The whole plan as JSON.")]


@dataclass(frozen=True)
class PlanOutput:
    """The output: text for a person, the same as JSON, and the forecast if there is one."""

    text: str
    data: dict[str, Any]
    forecast: Forecast | None


@app.command()
def plan(
    config: ConfigFile = None,
    overrides: Overrides = None,
    nproc: Nproc = None,
    nnodes: Nnodes = None,
    hardware: HardwareName = None,
    model: ModelName = None,
    seq_len: SeqLen = 4096,
    rows: Rows = None,
    lora: LoraRank = None,
    bits: Bits = None,
    algorithm: Algorithm = "sft",
    tokens: Tokens = None,
    simulate: Simulate = False,
    picture: Picture = None,
    ledger: Ledger = False,
    imports: Imports = True,
    as_json: AsJson = False,
) -> None:
    """Show what a training would do, how much memory it needs and how fast it will be, and why.

    Starts nothing; only --simulate needs torch.
    """
    if ledger:
        from paceline.launch.prediction_ledger import told_ledger

        typer.echo(told_ledger(as_json), nl=as_json)
        return
    # A forecast of a named model, or the plan of a config
    if config is None:
        from paceline.cli.planning.forecast import forecast_of_model

        found = forecast_of_model(model, hardware, seq_len, rows, lora, bits, algorithm, tokens)
        output = _of_model(found, str(model), lora, bits, simulate)
    else:
        output = _of_config(config, overrides, nproc, nnodes, hardware, model, simulate, imports)
    # Print it, and draw the forecast
    if as_json:
        typer.echo(json.dumps(output.data, indent=2, ensure_ascii=False))
    else:
        typer.echo(output.text, nl=False)
    if picture is not None and output.forecast is not None:
        from paceline.watch.forecast_picture import draw

        typer.echo(f"picture: {draw(output.forecast, picture)}", err=True)


def _of_model(found: Forecast, model: str, lora: int | None, bits: int | None, simulate: bool) -> PlanOutput:
    from paceline.plan.cost.report import text

    simulated = None
    if simulate:
        from paceline.cli.planning.simulate import simulated_model
        from paceline.plan.model.model_catalogue import named_config

        simulated = simulated_model(found, named_config(model), lora, bits)
    return _output(text(found), found.to_json(), simulated, found)


def _of_config(
    path: Path,
    overrides: Overrides,
    nproc: int | None,
    nnodes: int | None,
    hardware: str | None,
    model: str | None,
    simulate: bool,
    imports: bool,
) -> PlanOutput:
    from paceline.api.planning import planned_run
    from paceline.cli.planning.forecast import needs_one_subject
    from paceline.cli.training.joined import rehearsed
    from paceline.launch.launch_options import LaunchOptions
    from paceline.plan.hardware.device_catalogue import cluster_of
    from paceline.plan.specs.user_code import own_code

    needs_one_subject(model)
    options = LaunchOptions(nproc=nproc, nnodes=nnodes)
    loaded = (
        load(path, overrides, options.flags())
        if hardware
        else load_to_start(path, overrides, rehearsed(options).flags())
    )
    cluster = cluster_of(hardware) if hardware else None
    if imports and (code := own_code(loaded.config, Path.cwd())):
        typer.echo(
            f"plan now runs your own code, to check it, in a separate process: {'; '.join(code)}."
            " --no-imports leaves that out.",
            err=True,
        )
    found = planned_run(loaded, cluster, imports=imports)
    print_diagnostics(found.warnings)
    simulated = None
    if simulate:
        from paceline.cli.planning.simulate import simulated_config

        simulated = simulated_config(loaded.config, found.plan, found.forecast, cluster)
    return _output(found.text, found.to_json(), simulated, found.forecast)


def _output(
    page: str, data: dict[str, Any], simulated: SimulationResult | None, forecast: Forecast | None
) -> PlanOutput:
    if simulated is None:
        return PlanOutput(page, data, forecast)
    return PlanOutput(f"{page}\n{simulated.text()}", data | {"simulation": simulated.to_json()}, forecast)
