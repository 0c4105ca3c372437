"""Choose a layout by search: ``auto``'s fallbacks, ``fastest``, and alternatives to a plan that does not
fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan import codes
from paceline.plan.choose_strategy import StrategyChoice, chain_from, startable
from paceline.plan.cost.advice import in_bf16
from paceline.plan.cost.from_plan import (
    PROCESS,
    adapter_work,
    cluster_here,
    planned_candidate,
    predicted_plan,
    search_spec_of,
)
from paceline.plan.cost.memory.model_states import OptimizerStates
from paceline.plan.cost.report import settings, settings_text, short_mesh
from paceline.plan.cost.search import GIB, Candidate, SearchSpec, best_of_each, ranked, search
from paceline.plan.features.freezing import Freezing, trained_part
from paceline.plan.features.lora import adapter_of
from paceline.plan.hardware.probe import Hardware
from paceline.plan.plan import Decision, Plan
from paceline.plan.strategies.spec import Job, missing_package, strategy_spec
from paceline.plan.workload.step_spec import StepSpec

NAME = "fastest"
KEY = "training.distributed_strategy"
TRIED = 4  # layouts to try of a strategy before giving it up


def plan_fastest(job: Job, make: Callable[[Job], Plan]) -> Plan:
    """Return the plan of the fastest layout that fits, from ``make`` on the job with the layout's keys set.

    The rows per optimizer step stay as configured; its decisions list the alternatives. Raises ConfigError if
    nothing can be predicted, fits, or can be planned.
    """

    def fastest(spec: SearchSpec) -> Plan:
        found = [c for c in search(spec) if may_be(c, job.hardware)]
        refused: dict[str, str] = {}
        tries: Counter[str] = Counter()
        for candidate in ranked(found):
            tries[candidate.strategy] += 1
            if tries[candidate.strategy] > TRIED:
                continue
            try:
                plan = make(job.with_training(settings(candidate)))
            except ConfigError as error:
                refused.setdefault(candidate.strategy, error.diagnostics[0].what)
                continue
            return replace(_explained(plan, candidate, found, refused), config_digest=job.config.digest())
        raise ConfigError(_nothing(spec, found, refused))

    spec = _search_spec(job)
    plan = fastest(spec)
    planned = search_spec_of(plan, spec.cluster)
    if planned is None or planned.rollout is None:
        return plan
    # How long answers take is known once there is a plan, and depends on the layout, too.
    return fastest(replace(spec, rollout=planned.rollout))


def _search_spec(job: Job) -> SearchSpec:
    config, hardware, shape, t = job.config, job.hardware, job.shape, job.training
    # The search chooses the layout, so keys that set one are refused.
    sizes = None if t.parallelism is None else t.parallelism.model_dump(mode="json")
    taken = {
        key: value
        for key, value in (("parallelism", sizes), ("fsdp", t.fsdp), ("deepspeed", t.deepspeed))
        if value
    }
    if taken:
        raise ConfigError(
            *(codes.PLAN_FASTEST_CHOOSES(f"training.{k}", str(v)[:60], key=k) for k, v in taken.items())
        )
    # Sizes and speeds must be known.
    cluster = cluster_here(hardware, job.world_size, job.num_nodes)
    if shape is None or cluster is None:
        missing = "the model's size" if shape is None else f"the speed of {hardware.device_name}"
        raise ConfigError(codes.PLAN_FASTEST_UNKNOWN(KEY, NAME, missing=missing))
    rows = t.per_device_train_batch_size * t.gradient_accumulation_steps * job.world_size
    adapter = adapter_of(config.lora)
    return SearchSpec(
        shape=shape,
        cluster=replace(cluster, cards=job.world_size),
        seq_len=config.data.max_length,
        rows=rows,
        adapter=adapter_work(shape, adapter),
        flash=config.model.attn_implementation != "eager",
        algorithm=t.algorithm,
        states=OptimizerStates.configured(t, shape, adapter),
        trained_part=trained_part(shape, Freezing.configured(t, shape)),
    )


def may_be(candidate: Candidate, hardware: Hardware) -> bool:
    """Whether this machine has the layout's packages and, for offloading, separate host memory."""
    if missing_package(strategy_spec(candidate.layout.strategy), hardware):
        return False
    return hardware.device != "cpu" or candidate.work.offload == "none"  # nothing to offload to


def _explained(plan: Plan, taken: Candidate, found: list[Candidate], refused: dict[str, str]) -> Plan:
    def speed(layout: Candidate) -> str:  # as the table of strategies counts it
        return f"{layout.work.step_tokens / layout.step / plan.world_size:,.0f} tokens/s a device"

    how = (
        f"{short_mesh(taken)}, micro-batch {taken.work.micro_batch} ×"
        f" {taken.work.accumulation}{', recomputed' if taken.work.recompute == 'full' else ''}"
    )
    reason = (
        f"the fastest of {len(found)} predicted layouts: {how}:"
        f" {speed(taken)},"
        f" {taken.bytes / GIB:.1f} GiB of a limit of {taken.limit / GIB:.1f}"
    )
    others = []
    for best in best_of_each(found):
        if best.strategy == taken.strategy:
            continue
        others.append(
            Decision(
                f"not {best.strategy}",
                short_mesh(best),
                (best.binding or refused.get(best.strategy) or f"not faster: {speed(best)}"),
            )
        )
    decisions = tuple(replace(d, reason=reason) if d.subject == KEY else d for d in plan.decisions)
    return replace(plan, strategy_reason=reason, decisions=(*decisions, *others))


def _nothing(spec: SearchSpec, found: list[Candidate], refused: dict[str, str]) -> Diagnostic:
    more = in_bf16(spec, found[0]) if found and spec.adapter is None else []
    why = [f"{name}: {what}" for name, what in refused.items()]
    too_large = [f"{c.strategy}: {c.binding}" for c in best_of_each(found) if c.binding]
    remedies = ["use more memory or devices, a smaller data.max_length, or lora", *more]
    return codes.PLAN_FASTEST_NOTHING(
        KEY,
        "; ".join([*why, *too_large])[:400],
        hint="; ".join(remedies) if too_large else "change what each of them is refused for",
    )


MANY_CARDS = 4096  # with more cards the search takes too long for a hint


def what_fits(plan: Plan, hardware: Hardware, *, ran_out: bool = False) -> list[str]:
    """Return up to two remedies as YAML with predicted memory.

    One keeps the layout with smaller micro-batches or recomputation, one takes another strategy; where only
    offload helps, weights in bfloat16 alone are named, too. ``ran_out``:
    the plan's layout ran out of memory, so predictions are scaled up accordingly. Empty if nothing fits or
    can be predicted. Never the plan's own layout.
    """
    # Predict the plan itself and every layout of the search.
    cluster = cluster_here(hardware, plan.world_size, plan.num_nodes)
    if cluster is None or plan.world_size > MANY_CARDS:
        return []
    spec = search_spec_of(plan, replace(cluster, cards=plan.world_size))
    own = planned_candidate(plan, spec) if spec else None
    if spec is None or own is None:
        return []
    resident = PROCESS if hardware.device == "cpu" else 0.0
    factor = max(1.0, own.card / (own.bytes + resident)) if ran_out else 1.0
    try:
        found = search(spec)
    except ConfigError:
        return []
    # Fitting layouts that need less; then the nearest of each kind.
    found = [c for c in found if c.bytes < own.bytes]
    fits = [c for c in found if c.safe and factor * (c.bytes + resident) <= c.limit and may_be(c, hardware)]
    fits = [c for c in fits if not (_layout(c.work) == _layout(own.work) and not _gentler(c.work, own.work))]
    remedies = [
        min(some, key=_changes(own))
        for some in (
            [c for c in fits if _layout(c.work) == _layout(own.work)],
            [c for c in fits if _layout(c.work) != _layout(own.work)],
        )
        if some
    ]
    sentences = [_sentence(c, factor, resident) for c in remedies]
    if not ran_out and spec.adapter is None and all(c.work.offload != "none" for c in remedies):
        sentences += [text.removeprefix("or ") for text in in_bf16(spec, own)]
    return sentences


def _layout(work: StepSpec) -> tuple[int, int, int, int, int, str, float]:
    """Return a strategy's layout without micro-batch and recomputation, as an identity."""
    shared = work.sharers if work.zero else 1
    return work.zero, shared, work.tp, work.pp, work.cp, work.offload, work.zero and work.storage.weight


def _gentler(work: StepSpec, own: StepSpec) -> bool:
    """Whether a layout of the same strategy holds fewer activations than the plan's own."""
    if work.micro_batch > own.micro_batch or (own.recompute == "full" and work.recompute == "none"):
        return False
    return work.micro_batch < own.micro_batch or work.recompute != own.recompute


def _changes(own: Candidate) -> Callable[[Candidate], tuple[bool, bool, float]]:
    """Return a sort key: fewest changes first (same tp, pp, cp; then no offload), then fastest."""
    axes = own.work.tp, own.work.pp, own.work.cp
    return lambda c: ((c.work.tp, c.work.pp, c.work.cp) != axes, c.work.offload != "none", c.step)


def _sentence(found: Candidate, factor: float, resident: float) -> str:
    need = factor * (found.bytes + resident) / GIB
    return (
        f"{found.strategy} fits, {need:.1f} of {found.card / GIB:.1f} GiB: {settings_text(settings(found))}"
    )


def plan_auto(by_size: StrategyChoice, hardware: Hardware, make: Callable[[StrategyChoice], Plan]) -> Plan:
    """Return the plan of the first strategy, from the size rule's on, that can start and is predicted to fit.

    The config's micro-batch is kept; the plan's reason lists every attempt. Without predictions the first
    strategy that can start is taken. If none fits, the last that can start is kept, with advice. Raises
    ConfigError, with the first strategy's problems, if none can start.
    """
    reasons: list[str] = []
    kept: Plan | None = None
    first: ConfigError | None = None
    tried: set[tuple[str, str | None]] = set()
    for name in chain_from(by_size.strategy):
        # Two of the chain may become the same choice.
        chosen = startable(name, by_size, hardware)
        if (chosen.strategy, chosen.sharding) in tried:
            continue
        tried.add((chosen.strategy, chosen.sharding))
        label = f"{chosen.strategy} ({chosen.sharding})" if chosen.sharding else chosen.strategy
        try:
            plan = make(replace(chosen, reason="; ".join([chosen.reason, *reasons])))
        except ConfigError as error:
            first = first or error
            reasons.append(
                f"{label} cannot start: {error.diagnostics[0].what} ({error.diagnostics[0].found})"
            )
            continue
        # Take the first that fits, or whose memory cannot be predicted.
        found = predicted_plan(plan, hardware)
        if found is None or found.safe:
            fits = [] if found is None else [f"{label} fits: {_sizes(found)}"]
            return with_reason(plan, "; ".join([plan.strategy_reason, *fits]))
        reasons.append(f"{label} does not fit: {found.binding}")
        kept = plan
    # Nothing fits: keep the last that can start, if any can.
    if kept is None:
        assert first is not None
        raise first
    last = f"keeping {kept.strategy}; " + (
        "; or ".join(what_fits(kept, hardware)) or "none of the searched layouts fits"
    )
    return with_reason(kept, "; ".join([by_size.reason, *reasons, last]))


def _sizes(found: Candidate) -> str:
    return f"{found.bytes / GIB:.0f} GiB of {found.card / GIB:.0f}"


def with_reason(plan: Plan, reason: str) -> Plan:
    """Return ``plan`` with another reason for its strategy, in both places that hold it."""
    decisions = (
        replace(d, reason=reason) if d.subject == "training.distributed_strategy" else d
        for d in plan.decisions
    )
    return replace(plan, strategy_reason=reason, decisions=tuple(decisions))
