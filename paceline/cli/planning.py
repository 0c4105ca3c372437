"""Verbs that say what would happen: ``paceline plan`` and ``explain``."""

from __future__ import annotations

import difflib
import json
import os
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import codes
from paceline.cli.errors import print_diagnostics
from paceline.cli.join import rehearsed
from paceline.cli.options import Overrides
from paceline.core.diagnostics import CodeName, Diagnostic, all_codes
from paceline.core.errors import ConfigError, ExitCode
from paceline.core.package import PACKAGE_VERSION
from paceline.core.plugins.tables import ALGORITHMS, load_attr
from paceline.core.units import seconds_of
from paceline.launch.preflight.load_config import load, load_to_start
from paceline.launch.process_spec import LaunchOptions

if TYPE_CHECKING:
    from paceline.api.planning import PlannedRun
    from paceline.cli.simulate import SimulationResult
    from paceline.plan.cost.rental.choices import RentalLimits
    from paceline.plan.cost.report import Forecast
    from paceline.plan.cost.search import SearchSpec
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
    typer.Option(
        metavar="NxNAME|YAML",
        help="Plan for this hardware instead of this machine: 16xH100, 2xp5.48xlarge, 8xH100+8xA100.",
    ),
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
    typer.Option(min=1, max=1e18, help="With --model: tokens of the training, to predict the total time."),
]
GoalName = Annotated[
    str | None,
    typer.Option(
        metavar="cheapest|fastest|fewest",
        help="Search how many devices of which kind: of --hardware H100,A100, else of all that have a price.",
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option("--by", metavar="TIME", help="With a goal: the longest training, e.g. 3d or 36h."),
]
Budget = Annotated[
    str | None, typer.Option(metavar="USD", help="With a goal: the most that it may cost, e.g. 5000USD.")
]
Spot = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="With a goal: on spot cards, with this mean time until a node is taken away, e.g. 24h.",
    ),
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
Calibrate = Annotated[
    bool,
    typer.Option(
        "--calibrate",
        help="Take finished runs into this site's coefficients: paceline plan --calibrate RUN RUN …",
    ),
]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Also derive each term of memory and time, with formula and numbers."),
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
    goal: GoalName = None,
    by: Deadline = None,
    budget: Budget = None,
    spot: Spot = None,
    simulate: Simulate = False,
    picture: Picture = None,
    ledger: Ledger = False,
    calibrate: Calibrate = False,
    explain: Explain = False,
    imports: Imports = True,
    as_json: AsJson = False,
) -> None:
    """Show what a training would do, how much memory it needs and how fast it will be, and why.

    Starts nothing; only --simulate needs torch. Exit code 2 where nothing fits or keeps the limits.
    """
    if ledger:
        from paceline.launch.prediction_ledger import ledger_entry

        typer.echo(ledger_entry(as_json), nl=as_json)
        return
    if calibrate:
        from paceline.launch.calibrate_site import calibrate as take

        typer.echo(take([Path(run) for run in (config, *(overrides or ())) if run]), nl=False)
        return
    forecast: Forecast | None
    simulated: SimulationResult | None = None
    job = ModelJob(model or "", seq_len, rows, lora, bits, algorithm, tokens)
    limits = limits_of(goal, by, budget, spot)
    if limits is not None:
        name, spec_of = (job.model, job.specs()) if config is None else _config_specs(config, overrides)
        _rent(name, spec_of, limits, hardware, as_json, picture)
        return
    # A forecast of a named model, or the plan of a config
    if config is None:
        from paceline.plan.cost.report import text

        forecast = forecast_of_model(job, hardware)
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
    shown = None if forecast is None else forecast.own or forecast.chosen
    if explain and shown is not None:
        from paceline.plan.cost.derivation import derived

        page = f"{page}\n{derived(shown)}"
    if simulated is not None:
        page, data = f"{page}\n{simulated.text()}", data | {"simulation": simulated.to_json()}
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False) if as_json else page, nl=as_json)
    if picture is not None and forecast is not None:
        from paceline.watch.forecast_plot import draw

        typer.echo(f"picture: {draw(forecast, picture)}", err=True)
    if forecast is not None and not any(c.fits for c in (*forecast.rows, forecast.own) if c is not None):
        raise typer.Exit(int(ExitCode.CONFIG))


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


@dataclass(frozen=True)
class ModelJob:
    """A training without a config.

    - ``model``: a listed name, or a folder
    - ``seq_len``: tokens per row
    - ``rows``: rows per optimizer step
    - ``lora``: LoRA rank on all linear layers
    - ``bits``: 4 for QLoRA
    - ``tokens``: tokens of the whole training
    """

    model: str
    seq_len: int = 4096
    rows: int | None = None
    lora: int | None = None
    bits: int | None = None
    algorithm: str = "sft"
    tokens: float | None = None

    def specs(self) -> Callable[[AcceleratorCluster], SearchSpec]:
        """Return what gives the job on a cluster.

        Raises ConfigError with the nearest names for an unknown one, and for options that do not go together.
        """
        from paceline.plan.cost.from_plan import adapter_work
        from paceline.plan.cost.search import SearchSpec
        from paceline.plan.model.model_catalogue import model_shape
        from paceline.plan.plan import AdapterSpec, Quantization

        if not self.model:
            raise ConfigError(_missing("--model"))
        if self.bits is not None and self.lora is None:
            raise ConfigError(codes.PLAN_BITS("--bits", str(self.bits)))
        if self.algorithm not in ALGORITHMS.names() and ":" not in self.algorithm:
            names = ", ".join(ALGORITHMS.names())
            raise ConfigError(codes.PLAN_ALGORITHM("--algorithm", self.algorithm, names=names))
        shape, adapter = model_shape(self.model, os.environ), None
        if self.lora is not None:
            quantization = Quantization(self.bits) if self.bits else None
            adapted = AdapterSpec(
                self.lora, 2 * self.lora, target_modules=ALL_LINEAR, quantization=quantization
            )
            adapter = adapter_work(shape, adapted)

        def spec_of(cluster: AcceleratorCluster) -> SearchSpec:
            return _corrected(
                SearchSpec(
                    shape,
                    cluster,
                    self.seq_len,
                    self.rows or 0,
                    adapter,
                    algorithm=self.algorithm,
                    tokens=self.tokens or 0.0,
                )
            )

        return spec_of


def _corrected(spec: SearchSpec) -> SearchSpec:
    """Return ``spec`` with this site's coefficients for its cards, if there are any."""
    from paceline.launch.calibrate_site import coefficients_of

    site = coefficients_of(spec.cluster.machine.name)
    if site is None:
        return replace(spec, corrections=(1.0, 1.0), corrected_by="")
    factors = (site.memory_factor, site.time_factor)
    return replace(spec, corrections=factors, corrected_by=site.source(PACKAGE_VERSION))


def _missing(option: str) -> Diagnostic:
    what = "a plan needs a config, or a model and hardware"
    usage = "use paceline plan config.yaml, or paceline plan --model llama-3-8b --hardware 8xH100"
    return codes.PLAN_SUBJECT(what, option, "not given", usage)


def forecast_of_model(job: ModelJob, hardware: str | None) -> Forecast:
    """Forecast a job on ``hardware``. Raises ConfigError as ``ModelJob.specs``, and for unknown hardware."""
    from paceline.plan.cost.report import forecast
    from paceline.plan.hardware.device_catalogue import cluster_of

    if not job.model or hardware is None:
        raise ConfigError(_missing("--hardware" if job.model else "--model"))
    spec_of = job.specs()
    return forecast(job.model, spec_of(cluster_of(hardware)))


def limits_of(goal: str | None, by: str | None, budget: str | None, spot: str | None) -> RentalLimits | None:
    """Return what ``--goal``, ``--by``, ``--budget`` and ``--spot`` ask for; None if nothing.

    A deadline or spot cards alone ask for the cheapest, a budget alone for the fastest. Raises ConfigError.
    """
    from paceline.plan.cost.rental.choices import Goal, RentalLimits

    if goal is None and by is None and budget is None and spot is None:
        return None
    if goal is not None and goal not in {each.value for each in Goal}:
        raise ConfigError(codes.PLAN_LIMIT("--goal", goal))
    money = re.fullmatch(r"\s*\$?\s*(\d[\d,_]*(?:\.\d+)?)\s*(?:USD)?\s*", budget or "", re.IGNORECASE)
    usd = float(re.sub("[,_]", "", money[1])) if money else None
    if budget is not None and not usd:
        raise ConfigError(codes.PLAN_LIMIT("--budget", budget))
    wanted = Goal(goal) if goal else Goal.CHEAPEST if by is not None or budget is None else Goal.FASTEST
    return RentalLimits(wanted, _time("--by", by), usd, _time("--spot", spot))


def _time(option: str, given: str | None) -> float | None:
    """Return the seconds that an option gives. Raises ConfigError."""
    try:
        seconds = None if given is None else seconds_of(given)
    except ValueError as error:
        raise ConfigError(codes.PLAN_LIMIT(option, str(given))) from error
    if seconds == 0:
        raise ConfigError(codes.PLAN_LIMIT(option, str(given)))
    return seconds


def _config_specs(path: Path, overrides: Overrides) -> tuple[str, Callable[[AcceleratorCluster], SearchSpec]]:
    """Return the model's name, and what gives a config's job on a cluster. Raises ConfigError."""
    # The job's numbers without its layout are the same on any accelerator
    _, planned = _plan_config(path, overrides, LaunchOptions(), "8xH100", imports=False)
    if planned.forecast is None:
        raise ConfigError(_missing("--model"))
    spec = planned.forecast.spec
    return planned.forecast.name, lambda other: _corrected(replace(spec, cluster=other))


def _rent(
    name: str,
    spec_of: Callable[[AcceleratorCluster], SearchSpec],
    limits: RentalLimits,
    hardware: str | None,
    as_json: bool,
    picture: Path | None,
) -> None:
    """Print what to rent, and draw cost against time."""
    from paceline.plan.cost.rental import answer
    from paceline.plan.cost.rental.choices import choose, kinds

    choices = choose(limits, kinds(hardware), spec_of)
    data = answer.to_json(name, choices)
    typer.echo(
        json.dumps(data, indent=2, ensure_ascii=False) if as_json else answer.text(name, choices), nl=as_json
    )
    if picture is not None:
        from paceline.watch.rental_plot import draw

        typer.echo(f"picture: {draw(name, choices, picture)}", err=True)
    if choices.best is None:
        raise typer.Exit(int(ExitCode.CONFIG))


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
