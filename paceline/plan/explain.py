"""The plan as text: every decision with its reason, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from paceline.config.schema import Config
from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic
from paceline.core.units import human_bytes, human_count
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.cost.memory.peak import state_summary
from paceline.plan.features.freezing import Freezing
from paceline.plan.model.parameter_list import tally_of
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Plan
from paceline.runlog.lines import overview_line, short_path

WIDTH = 100
SUBJECT_WIDTH = 33


def explain(plan: Plan) -> str:
    """Return the text of ``paceline plan``."""
    lines = [f"Plan {plan.digest()[:12]}: {plan.headline()}"]
    lines += _entry("model", _model(plan), "")
    if plan.shape is not None and plan.shape.carried:
        lines += _entry("not trained", _carried(plan.shape), "")
    if plan.shape is not None and plan.shape.quantised:
        lines += _entry("base", _dequantised(plan.shape), "")
    if state := state_summary(plan.shape):
        lines += _entry("layers with state", state, "")
    lines += _entry("mesh", str(plan.mesh), "")
    row = plan.seq_len * algorithm_spec(plan.algorithm).documents_a_row
    lines += _entry("row", f"{row} tokens{', packed' if plan.packing else ''}", "")
    for decision in plan.decisions:
        mark = "" if decision.granted else "not applied: "
        lines += _entry(decision.subject, mark + decision.choice, decision.reason)
    lines += _memory(plan)
    lines += _entry("optimizer", f"{plan.optimizer.name}, learning rate {plan.optimizer.learning_rate:g}", "")
    lines += _entry("evaluation", _evaluation(plan.config), "")
    lines += _entry("checkpoints", _checkpoints(plan.config.training), "")
    lines += _entry("run directory", plan.run_dir, "")
    return "\n".join(lines) + "\n"


def _evaluation(config: Config) -> str:
    """Return a text on when and on which rows the run evaluates."""
    t, data = config.training, config.data
    if t.eval_strategy == "no" and not t.eval_on_start:
        return "none: training.eval_strategy is no"
    when = [] if t.eval_strategy == "no" else [_every(t.eval_strategy, t.eval_steps or t.logging_steps)]
    when += ["before the first step"] if t.eval_on_start else []
    split = data.validation_split
    held = (
        ""
        if split is None
        else f", {split:.4g} of data.train"
        if split < 1
        else f", {split:g} rows of data.train"
    )
    answers = ", with answers" if t.eval_generate else ""
    return f"{' and '.join(when)}{'' if data.eval else held}{answers}"


def _checkpoints(t: TrainingSection) -> str:
    """Return a text on when checkpoints are saved, and how many are kept."""
    if t.save_strategy == "no":
        return "none: training.save_strategy is no"
    when = "after each best evaluation" if t.save_strategy == "best" else ""
    when = when or _every(t.save_strategy, t.save_steps)
    kept = (
        "all are kept" if t.save_total_limit is None else f"{t.save_total_limit} are kept (save_total_limit)"
    )
    best = ", and the best" if t.load_best_model_at_end and t.save_total_limit is not None else ""
    return f"{when} and at the end; {kept}{best}"


def _every(strategy: str, steps: float) -> str:
    """Return an interval as text; a number below 1 is a fraction of all steps."""
    if strategy == "epoch":
        return "after each epoch"
    return f"every {steps:g} steps" if steps >= 1 else f"every {steps:.4g} of all steps"


#: in the evidence of a finding: the rows of a step that a resume keeps
GLOBAL_BATCH = "global_batch"


def overview(plan: Plan, expected_bytes: float | None = None, findings: Iterable[Diagnostic] = ()) -> str:
    """Return three lines to print before a training: model, hardware and size.

    ``expected_bytes``: the predicted peak memory of a process, if enough is known about the machine;
    ``findings``: of the checks before the start, which may change the rows of a step at a resume.
    """
    kept = next((found.evidence[GLOBAL_BATCH] for found in findings if GLOBAL_BATCH in found.evidence), None)
    rows = plan.batch.global_batch if kept is None else kept
    mesh = "" if plan.mesh.model_copies == 1 else f" ({plan.mesh})"
    nodes = f" on {plan.num_nodes} nodes" if plan.num_nodes > 1 else ""
    processes = f"{plan.world_size} process{'es' if plan.world_size > 1 else ''}{nodes}"
    lines = (
        overview_line("what", f"{plan.algorithm} of {_trained(plan)}, {plan.precision.compute}"),
        overview_line(
            "where", f"{processes}, {plan.device}, {plan.strategy}{mesh}; {short_path(plan.run_dir)}"
        ),
        overview_line("how large", _size(plan, rows, expected_bytes)),
    )
    return "\n".join(lines) + "\n"


def _trained(plan: Plan) -> str:
    """Return the trained model, its size, and the trained part."""
    model, shape, adapter = plan.config.model, plan.shape, plan.adapter
    name = model.name_or_path or (f"a new {shape.model_type}" if shape else "a new model")
    parts = [name]
    if shape is not None:
        about = "" if shape.exact else "about "
        parts.append(f"{about}{human_count(shape.num_parameters)} parameters")
    if adapter is not None:
        bits = f" on {adapter.quantization.bits}-bit weights" if adapter.quantization else ""
        blocks = adapter.oft_block_size
        kind = f"OFT in blocks of {blocks}" if blocks else f"LoRA of rank {adapter.r}"
        parts.append(f"{kind}{bits}")
    if plan.vision:
        tower = "frozen" if adapter is not None else Freezing.of(plan).of_tower()
        parts.append(f"with images (vision tower: {tower})")
    return ", ".join(parts)


def _size(plan: Plan, global_batch: object, expected_bytes: float | None) -> str:
    """Return the rows of a step and the memory of a process."""
    row = plan.seq_len * algorithm_spec(plan.algorithm).documents_a_row
    rows = f"{global_batch} rows of {row:,} tokens per step"
    states = plan.memory.largest if plan.memory else None
    parts = []
    if states is not None:
        about = "" if plan.shape is not None and plan.shape.exact else "about "
        parts.append(f"{about}{human_bytes(states.total)} of model states")
    if expected_bytes:
        parts.append(f"about {human_bytes(expected_bytes)} in all")
    return f"{rows}; {', '.join(parts)} per process" if parts else rows


def _model(plan: Plan) -> str:
    shape = plan.shape
    if shape is None:
        return "size unknown until it is downloaded"
    about = "" if shape.exact else "about "
    heads = f"{shape.heads} heads, {shape.kv_heads} of them KV" if shape.heads else "no attention heads"
    why = f"; not counted exactly: {shape.why_about}" if shape.why_about else ""
    return (
        f"{shape.model_type}, {about}{human_count(shape.num_parameters)} parameters,"
        f" {about}{human_count(shape.matmul_parameters)} of them in matrix products ({shape.layers} layers of"
        f" {shape.hidden_size}, {heads}, vocabulary {shape.vocab}){_active(shape)}{why}"
    )


def _active(shape: ModelShape) -> str:
    """Return the active parameters per token of a mixture of experts."""
    if shape.mixture is None:
        return ""
    tally = tally_of(shape)
    return (
        f"; a token meets {human_count(tally.active)} ({shape.mixture.visited} of {shape.mixture.experts}"
        f" experts), embeddings of {human_count(tally.embeddings)} apart"
    )


def _carried(shape: ModelShape) -> str:
    of = f" of {shape.composite}" if shape.composite else ""
    return (
        f"{shape.carried} tensors of the folder{of} ({human_bytes(shape.carried_bytes)}), a tower or further"
        " prediction heads: only the language model is trained, and an export copies them unchanged"
    )


def _dequantised(shape: ModelShape) -> str:
    return (
        f"stored quantized ({shape.quantised}), dequantised to bfloat16 when it is read:"
        f" {human_bytes(shape.dequantised_bytes)} ({shape.dequantised_bytes:,} bytes); a complete export has"
        " plain weights and no quantization_config, an adapter names this folder"
    )


def _memory(plan: Plan) -> list[str]:
    """Return the model states of a rank as a small table."""
    memory = plan.memory
    if memory is None or memory.largest is None or memory.smallest is None:
        return _entry(
            "model states",
            "unknown",
            (
                "the model's size is unknown"
                if plan.shape is None
                else "not counted for this strategy or adapter"
            ),
        ) + _roles(plan)
    about = "" if plan.shape is not None and plan.shape.exact else "about "
    most, least = memory.largest.total, memory.smallest.total
    every = (
        "on every rank"
        if most == least
        else f"on the rank that holds most; {human_bytes(least)} on the one that holds least"
    )
    lines = _entry("model states", f"{about}{human_bytes(most)}", f"{every}, without activations and buffers")
    for part in ("parameters", "gradients", "optimizer"):
        count = getattr(memory.largest, part) + (memory.largest.counters if part == "optimizer" else 0)
        lines.append(f"    {part:<{SUBJECT_WIDTH - 2}}{human_bytes(count):>10}   {count:>18,} bytes")
    return lines + _roles(plan)


def _roles(plan: Plan) -> list[str]:
    """Return a line per model, for algorithms with several."""
    lines = []
    for role, states in (plan.memory.roles if plan.memory else {}).items():
        model = plan.models.get(role)
        kind = "trained" if model is None or model.trained else "frozen"
        count = states.total if states else 0
        size = f"{human_bytes(count):>10}   {count:>18,} bytes" if states else f"{'unknown':>10}"
        lines.append(f"    {f'of them the {role}, {kind}':<{SUBJECT_WIDTH - 2}}{size}")
    return lines


def _entry(subject: str, choice: str, reason: str) -> list[str]:
    """Return ``subject  choice: reason``, wrapped; long words such as paths are not broken."""
    wrapped = textwrap.wrap(
        f"{choice}: {reason}" if reason else choice,
        WIDTH - SUBJECT_WIDTH - 2,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]
    if len(subject) > SUBJECT_WIDTH - 1:
        return [f"  {subject}", *(" " * (SUBJECT_WIDTH + 2) + line for line in wrapped)]
    return [
        f"  {subject:<{SUBJECT_WIDTH}}{wrapped[0]}",
        *(" " * (SUBJECT_WIDTH + 2) + line for line in wrapped[1:]),
    ]
