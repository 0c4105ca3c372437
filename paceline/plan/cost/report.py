"""The search's result as a table of at most 100 columns, as JSON, and as YAML for the chosen layout."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from paceline.config.sections.training_scale import ScaleFields
from paceline.core.json_types import Json, JsonObject
from paceline.core.units import human_bytes, human_count, human_seconds
from paceline.plan.cost.advice import advice, escalated
from paceline.plan.cost.coefficients import spread
from paceline.plan.cost.goodput import goodput
from paceline.plan.cost.search import GIB, Candidate, SearchSpec, best_of_each, fastest, host_bytes, search
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.workload.step_spec import StepSpec

WIDTH = 100
LEAN = 0.9
TERMS = (
    "parameters",
    "gradients",
    "optimizer",
    "attention",
    "mlp",
    "checkpoints",
    "images",
    "logits",
    "gathered",
    "others",
    "fragments",
    "overhead",
)


@dataclass(frozen=True)
class Forecast:
    """A search's result: each strategy's best layout, the fastest that fits, auto's choice, and advice."""

    name: str
    spec: SearchSpec
    rows: tuple[Candidate, ...]
    chosen: Candidate | None
    ruled: Candidate | None
    steps: tuple[str, ...]
    advice: tuple[str, ...]
    considered: int
    own: Candidate | None = None  # the layout of the config's plan
    leanest: tuple[Candidate, ...] = ()  # each strategy's, where it needs clearly less than its fastest

    def to_json(self) -> JsonObject:
        """Plain JSON types."""
        shown = self.own or self.chosen
        run = outlook(shown, self.spec) if shown else None
        lost = goodput(shown.work, self.spec.cluster, run.checkpoint_bytes) if shown and run else None
        return {
            "model": self.name,
            "parameters": self.spec.shape.num_parameters,
            "hardware": {
                **asdict(self.spec.cluster.machine),
                "cards": self.spec.cluster.cards,
                "nodes": self.spec.cluster.nodes,
                "source": self.spec.cluster.source,
            },
            "unverified": list(self.spec.cluster.unverified),
            "seq_len": self.spec.seq_len,
            "rows": self.spec.rows,
            "corrections": {
                "memory": self.spec.corrections[0],
                "time": self.spec.corrections[1],
                "source": self.spec.corrected_by,
            },
            "considered": self.considered,
            "strategies": [candidate_json(c) for c in self.rows],
            "leanest": [candidate_json(c) for c in self.leanest],
            "planned": candidate_json(self.own) if self.own else None,
            "chosen": candidate_json(self.chosen) if self.chosen else None,
            "auto": {"chosen": self.ruled.strategy if self.ruled else None, "steps": list(self.steps)},
            "outlook": run.to_json() if run else None,
            "goodput": lost.to_json() if lost else None,
            "advice": list(self.advice),
        }


def forecast(name: str, spec: SearchSpec, own: Candidate | None = None, reason: str = "") -> Forecast:
    """Search all layouts; ``own``: the layout of a config's plan; ``reason``: of its ``auto`` choice.

    With a config, its plan decides what ``auto`` does at the config's batch size. Without one (``own`` is
    None), ``ruled`` is what ``auto`` would choose with all sizes free.
    """
    candidates = search(spec)
    chosen = fastest([*candidates, *([own] if own is not None else [])])
    ruled, steps = (
        escalated(spec, candidates) if own is None else (own if reason else None, [reason] if reason else [])
    )
    # The chosen layout may be the config's own, which the search did not list.
    rows = tuple(chosen if chosen and c.strategy == chosen.strategy else c for c in best_of_each(candidates))
    return Forecast(
        name,
        spec,
        rows,
        chosen,
        ruled,
        tuple(steps),
        tuple(advice(spec, candidates, chosen)),
        len(candidates),
        own,
        leanest_of_each(candidates, rows),
    )


def leanest_of_each(candidates: Sequence[Candidate], rows: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return each strategy's layout with the least memory, if that is ``LEAN`` of its fastest's or less."""
    lean = []
    for row in rows:
        others = [c for c in candidates if c.strategy == row.strategy and not c.impossible]
        least = min(others, key=lambda c: (c.bytes, c.step), default=row)
        if row.safe and least.bytes <= LEAN * row.bytes:
            lean.append(least)
    return tuple(lean)


def candidate_json(c: Candidate) -> JsonObject:
    """Return one layout with its predictions as plain JSON types."""
    low, high = spread("memory")
    return {
        "strategy": c.strategy,
        "mesh": c.mesh.to_json(),
        "micro_batch": c.work.micro_batch,
        "accumulation": c.work.accumulation,
        "recompute": c.work.recompute == "full",
        "offload": c.work.offload,
        "memory_bytes": round(c.bytes),
        "memory_range": [round(c.bytes * low), round(c.bytes * high)],
        "memory_terms": c.peak.to_json(),
        "fullest_stage": c.place,
        "fits": c.fits,
        "safe": c.safe,
        "binding": c.binding,
        "step_seconds": round(c.step, 4),
        "time_terms": {k: round(v, 4) for k, v in asdict(c.speed).items() if k in TIME},
        "tokens_per_second_per_card": round(c.work.step_tokens / c.step / c.work.world, 1),
        "mfu": round(c.speed.mfu / c.time_factor, 4),
        "config": settings(c),
    }


TIME = (
    "compute",
    "tensor_parallel",
    "context_parallel",
    "data_parallel",
    "pipeline",
    "bubble",
    "optimizer",
    "offload",
    "others",
    "generation",
)
COMMUNICATION = TIME[1:5]


def settings(c: Candidate) -> JsonObject:
    """Return the ``training`` keys that start this layout with ``paceline train``."""
    keys: JsonObject = {
        "per_device_train_batch_size": c.work.micro_batch,
        "gradient_accumulation_steps": c.work.accumulation,
        "gradient_checkpointing": c.work.recompute == "full",
    }
    if c.work.algorithm != ScaleFields.model_fields["algorithm"].default:
        keys["algorithm"] = c.work.algorithm
    return keys | strategy_spec(c.layout.strategy).settings(c.work, c.mesh)


def text(f: Forecast) -> str:
    """Return the table for the terminal."""
    machine, shape = f.spec.cluster.machine, f.spec.shape
    nodes = f"{f.spec.cluster.nodes} node{'s' if f.spec.cluster.nodes > 1 else ''} of {machine.node}"
    # Header: job, model, batch.
    lines = [
        f"{f.name} on {f.spec.cluster.cards} × {machine.name} ({nodes}, {machine.memory / GIB:.1f} GiB each)",
        (
            f"{human_count(shape.num_parameters)} parameters,"
            f" {human_count(shape.matmul_parameters)} per token; {f.spec.rows} rows of"
            f" {f.spec.seq_len} tokens per step ({human_count(f.spec.rows * f.spec.seq_len)})"
        ),
        "",
        (
            f"  {'strategy':<20} {'mesh':<21} {'micro':>8} {'GiB':>6} {'states':>6} {'act.':>5} {'s/step':>7}"
            f" {'tok/s':>6} {'MFU':>4}"
        ),
    ]
    # A row per strategy: ``=`` this config, ``*`` fastest, ``>`` auto's choice.
    if f.own is not None:
        lines.append(_row(f.own, "="))
    for c in f.rows:
        mark = (
            "*"
            if f.chosen is not None and c is f.chosen
            else ">"
            if f.own is None and f.ruled is not None and c.strategy == f.ruled.strategy
            else " "
        )
        lines.append(_row(c, mark))
    # Notes below the table.
    lines += ["", *_chosen(f), *_leanest(f)]
    if f.own is None:
        lines += wrapped("auto", "; ".join(f.steps))
    shown = f.own or f.chosen
    if shown is not None:
        run = outlook(shown, f.spec)
        lines += wrapped("total", run.text())
        lost = goodput(shown.work, f.spec.cluster, run.checkpoint_bytes)
        lines += wrapped("goodput", lost.text(shown.step))
    for sentence in f.advice:
        lines += wrapped("note", sentence)
    lines += _reliability(f)
    lines.append(
        "* fastest that fits (within 1 %: the one with least memory)  "
        + ("= this config" if f.own else "> auto's")
    )
    lines.append("micro: micro-batch × accumulation, r: with recomputation")
    return "\n".join(lines) + "\n"


def _reliability(f: Forecast) -> list[str]:
    """Return a text on the reliability of the numbers."""
    lines: list[str] = []
    cluster = f.spec.cluster
    low, high = spread("memory")
    slow, fast = spread("low_precision" if any(c.work.low_precision for c in f.rows) else "speed")
    lines += wrapped(
        "spread",
        f"measured divided by predicted, for 80 % of published rows: memory {low:.2f} to"
        f" {high:.2f}, speed {slow:.2f} to {fast:.2f} (docs/explanation/planner_accuracy.md)",
    )
    memory_factor, time_factor = f.spec.corrections
    if f.spec.corrections != (1.0, 1.0):
        source = f.spec.corrected_by or "measured runs"
        lines += wrapped(
            "measured",
            f"{source}: memory × {memory_factor:.2f}, time × {time_factor:.2f}, in all numbers above",
        )
    if cluster.unverified:
        lines += wrapped(
            "unsure",
            f"these numbers of {cluster.machine.name} have not been verified:"
            f" {', '.join(cluster.unverified)}",
        )
    return lines


def _row(c: Candidate, mark: str) -> str:
    name = c.name
    states = (c.peak.parameters + c.peak.gradients + c.peak.optimizer) / GIB
    moving = (c.peak.attention + c.peak.mlp + c.peak.checkpoints + c.peak.images + c.peak.logits) / GIB
    head = (
        f"{mark} {name:<20} {short_mesh(c):<21} {_micro(c):>8} {c.bytes / GIB:>6.1f} {states:>6.1f}"
        f" {moving:>5.1f}"
    )
    if not c.fits:
        return f"{head} no: {textwrap.shorten(_why(c), WIDTH - len(head) - 5, placeholder='…')}"
    return (
        f"{head} {c.step:>7.2f} {c.work.step_tokens / c.step / c.work.world:>6.0f}"
        f" {c.speed.mfu / c.time_factor:>4.0%}{'' if c.safe else ' tight'}"
    )


def _why(c: Candidate) -> str:
    if c.impossible:
        return c.impossible
    terms = c.peak.to_json()
    most = max(terms, key=lambda name: terms[name])
    return f"{c.bytes / GIB:.0f} of {c.card / GIB:.0f}, {most.removesuffix('s')}"


def short_mesh(c: Candidate) -> str:
    """Return the mesh in short form: ``pp4 dp16 shard8 tp2``."""
    names = {"pp": "pp", "dp_replicate": "dp", "dp_shard": "shard", "cp": "cp", "tp": "tp"}
    parts = [f"{names[axis]}{size}" for axis, size in c.mesh.to_json().items() if size > 1]
    return " ".join(parts) or "one process"


def _chosen(f: Forecast) -> list[str]:
    c = f.chosen
    if c is None:
        tight = any(row.fits for row in (*f.rows, *([f.own] if f.own is not None else [])))
        return ["Nothing fits with the safety margin." if tight else "Nothing fits."]
    terms = c.peak.to_json()
    parts = ", ".join(f"{name} {terms[name] / GIB:.1f}" for name in TERMS if terms.get(name, 0) >= 0.05 * GIB)
    where = f" on stage {c.place} of {c.work.pp}" if c.work.pp > 1 else ""
    lines = wrapped("fastest", f"{c.name}, {short_mesh(c)}: GiB of the fullest rank{where}: {parts}")
    return lines + wrapped("start", settings_text(settings(c)))


def _leanest(f: Forecast) -> list[str]:
    """Return the layouts with the least memory, for those who need room."""
    least = sorted(f.leanest, key=lambda c: c.bytes)[:3]
    if not least:
        return []
    parts = [
        f"{c.name} {short_mesh(c)} {_micro(c)}: {c.bytes / GIB:.1f} GiB,"
        f" {c.work.step_tokens / c.step / c.work.world:,.0f} tok/s"
        for c in least
    ]
    return wrapped("leanest", "; ".join(parts))


def _micro(c: Candidate) -> str:
    return f"{c.work.micro_batch}×{c.work.accumulation}{'r' if c.work.recompute == 'full' else ''}"


def settings_text(values: Mapping[str, Json]) -> str:
    """Return ``training`` keys on one line of YAML."""
    return "training: {" + ", ".join(f"{key}: {_flow(value)}" for key, value in values.items()) + "}"


def _flow(value: Json) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.items()) + "}"
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def wrapped(label: str, sentence: str) -> list[str]:
    """Return a sentence behind its label, in lines of at most ``WIDTH`` columns."""
    lines = textwrap.wrap(sentence, WIDTH - 10, break_long_words=False, break_on_hyphens=False)
    return [f"{label + ':':<9} {lines[0]}", *(" " * 10 + line for line in lines[1:])]


@dataclass(frozen=True)
class RunForecast:
    """Forecast for the whole training; ``steps`` and ``seconds`` are 0 if its length is not known.

    ``basis``: what the length is based on. Disk bytes are totals over all ranks.
    """

    steps: int
    seconds: float
    checkpoint_bytes: int
    kept: int
    disk_bytes: int
    host_bytes_a_node: int
    nvme_bytes_a_node: int
    basis: str = ""

    def to_json(self) -> dict[str, float | str]:
        """Plain JSON types."""
        return asdict(self)

    def text(self) -> str:
        """Return the forecast as one sentence."""
        parts = []
        if self.steps:
            rests = f" ({self.basis})" if self.basis else ""
            parts.append(f"{self.steps:,} steps in {human_seconds(self.seconds)}{rests}")
        elif self.basis:
            parts.append(self.basis)
        many = f" × {self.kept} = {human_bytes(self.disk_bytes)}" if self.kept > 1 else ""
        parts.append(f"a checkpoint needs {human_bytes(self.checkpoint_bytes)} of disk{many}")
        if self.host_bytes_a_node:
            parts.append(f"offload needs {human_bytes(self.host_bytes_a_node)} of host memory per node")
        if self.nvme_bytes_a_node:
            parts.append(f"offload needs {human_bytes(self.nvme_bytes_a_node)} of NVMe per node")
        return "; ".join(parts)


def outlook(candidate: Candidate, spec: SearchSpec) -> RunForecast:
    """Return the forecast of the whole training with the layout ``candidate``."""
    work, nvme = candidate.work, spec.nvme
    steps = spec.steps or (math.ceil(spec.tokens / work.step_tokens) if spec.tokens else 0)
    each = spec.states.saved * trained_parameters(work) * (1 + work.trained_models)
    host, disk = host_bytes(work), 0.0
    if nvme and host:
        s, offloaded = work.storage, work.storage.optimizer * work.offloaded
        # The optimizer's part of the host's bytes, by bytes a parameter.
        optimizer = host * offloaded / (offloaded + (s.weight + s.gradient if work.offload == "all" else 0.0))
        disk = optimizer * ("optimizer" in nvme) + (host - optimizer) * ("parameters" in nvme)
    return RunForecast(
        steps=steps,
        # A step is predicted for full rows; shorter ones take their share of it.
        seconds=steps * candidate.step * (spec.row_tokens / spec.seq_len if spec.row_tokens else 1.0),
        checkpoint_bytes=round(each),
        kept=spec.kept,
        disk_bytes=round(each * spec.kept),
        host_bytes_a_node=round(host - disk),
        nvme_bytes_a_node=round(disk),
        basis=spec.basis,
    )


def trained_parameters(work: StepSpec) -> float:
    """Return the parameters of one trained model: all, or adapter and modules trained in full."""
    if work.adapter is not None:
        return float(work.adapter.trained)
    return float(work.shape.num_parameters)
