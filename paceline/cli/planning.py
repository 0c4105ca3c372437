"""Verbs that say what would happen: ``paceline plan`` and ``explain``."""

from __future__ import annotations

import difflib
import json
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import codes
from paceline.cli.errors import print_diagnostics
from paceline.cli.join import rehearsed
from paceline.cli.options import Overrides
from paceline.core.diagnostics import CodeName, all_codes
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import ALGORITHMS, load_attr
from paceline.launch.preflight.load_config import load, load_to_start
from paceline.launch.process_spec import LaunchOptions

if TYPE_CHECKING:
    from paceline.api.planning import PlannedRun
    from paceline.cli.simulate import SimulationResult
    from paceline.plan.cost.report import Forecast
    from paceline.plan.hardware.device_catalogue import AcceleratorCluster

PlannedConfig = Annotated[
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
# Linear layers under the names that the families of the built-in list give them
ALL_LINEAR = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "query_key_value", "dense", "c_attn", "c_proj"),
    *("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "c_fc"),
    *("dense_h_to_4h", "dense_4h_to_h"),
)
_CODE = "The text in brackets: error[CODE]; one of your own spec as module:CODE. Without it all are listed."
_COLUMNS = 100


def plan(
    config: PlannedConfig = None,
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
        from paceline.launch.prediction_ledger import ledger_entry

        typer.echo(ledger_entry(as_json), nl=as_json)
        return
    forecast: Forecast | None
    simulated: SimulationResult | None = None
    # A forecast of a named model, or the plan of a config
    if config is None:
        from paceline.plan.cost.report import text

        forecast = forecast_of_model(model, hardware, seq_len, rows, lora, bits, algorithm, tokens)
        page, data = text(forecast), forecast.to_json()
        if simulate:
            from paceline.cli.simulate import simulated_model

            simulated = simulated_model(forecast, lora, bits)
    else:
        if model is not None:
            twice = "the config already names the model"
            once = f"put model.name_or_path={model} after the config, or leave the config out"
            raise ConfigError(codes.PLAN_SUBJECT(twice, "--model", model, once))
        options = LaunchOptions(nproc=nproc, nnodes=nnodes)
        cluster, planned = _plan_config(config, overrides, options, hardware, imports)
        page, data, forecast = planned.text, planned.to_json(), planned.forecast
        if simulate:
            from paceline.cli.simulate import simulated_config

            simulated = simulated_config(planned.plan, forecast, cluster)
    if simulated is not None:
        page, data = f"{page}\n{simulated.text()}", data | {"simulation": simulated.to_json()}
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False) if as_json else page, nl=as_json)
    if picture is not None and forecast is not None:
        from paceline.watch.forecast_plot import draw

        typer.echo(f"picture: {draw(forecast, picture)}", err=True)


def _plan_config(
    path: Path, overrides: Overrides, options: LaunchOptions, hardware: str | None, imports: bool
) -> tuple[AcceleratorCluster | None, PlannedRun]:
    """Plan a config for this machine or the named hardware, and print the warnings."""
    from paceline.api.planning import planned_run
    from paceline.plan.hardware.device_catalogue import cluster_of
    from paceline.plan.user_code import own_code

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
    planned = planned_run(loaded, cluster, imports=imports)
    print_diagnostics(planned.warnings)
    return cluster, planned


def forecast_of_model(
    model: str | None,
    hardware: str | None,
    seq_len: int,
    rows: int | None,
    lora: int | None,
    bits: int | None,
    algorithm: str = "sft",
    tokens: float | None = None,
) -> Forecast:
    """Forecast the training of ``model`` on ``hardware``.

    - ``seq_len``: tokens per row
    - ``rows``: rows per optimizer step
    - ``lora``: LoRA rank on all linear layers
    - ``bits``: 4 for QLoRA
    - ``tokens``: tokens of the whole training

    Raises ConfigError with the nearest names for an unknown one, and for options that do not go together.
    """
    from paceline.plan.cost.from_plan import adapter_work
    from paceline.plan.cost.report import forecast
    from paceline.plan.cost.search import SearchSpec
    from paceline.plan.hardware.device_catalogue import cluster_of
    from paceline.plan.model.model_catalogue import model_shape
    from paceline.plan.plan import AdapterSpec, Quantization

    if model is None or hardware is None:
        missing = "--model" if model is None else "--hardware"
        what = "a plan needs a config, or a model and hardware"
        usage = "use paceline plan config.yaml, or paceline plan --model llama-3-8b --hardware 8xH100"
        raise ConfigError(codes.PLAN_SUBJECT(what, missing, "not given", usage))
    if bits is not None and lora is None:
        raise ConfigError(codes.PLAN_BITS("--bits", str(bits)))
    if algorithm not in ALGORITHMS.names() and ":" not in algorithm:
        raise ConfigError(codes.PLAN_ALGORITHM("--algorithm", algorithm, names=", ".join(ALGORITHMS.names())))
    shape, adapter = model_shape(model, os.environ), None
    if lora is not None:
        quantization = Quantization(bits) if bits else None
        spec = AdapterSpec(lora, 2 * lora, target_modules=ALL_LINEAR, quantization=quantization)
        adapter = adapter_work(shape, spec)
    cluster = cluster_of(hardware)
    search = SearchSpec(
        shape, cluster, seq_len, rows or 0, adapter, algorithm=algorithm, tokens=tokens or 0.0
    )
    return forecast(model, search)


def explain(code: Annotated[str | None, typer.Argument(metavar="CODE", help=_CODE)] = None) -> None:
    """Explain a diagnostic's code: what it means, and what to do."""
    typer.echo("\n".join(sorted(all_codes())) if code is None else explained(code.strip("[] ")))


def explained(name: str) -> str:
    """Return the explanation of the code ``name``; one of a user's own spec is named as ``module:CODE``.

    Raises ConfigError with the nearest codes when it is unknown.
    """
    every_code = all_codes()
    code = every_code.get(name) or (load_attr(name) if ":" in name else None)
    if isinstance(code, CodeName):
        text = textwrap.fill(code.explanation, _COLUMNS, initial_indent="  ", subsequent_indent="  ")
        return f"{code.name}\n{text}"
    kin = [c for c in sorted(every_code) if c.split(".")[0] == name.split(".")[0]]
    near = difflib.get_close_matches(name, every_code, n=3) or kin[:5]
    nearest = f"nearest: {', '.join(near)}" if near else "the code in brackets of a message, e.g. run.exists"
    raise ConfigError(codes.CLI_UNKNOWN_CODE("command line", name, hint=nearest))
