"""``distributed_strategy: fastest``: plan the fastest layout of the search that fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan import codes
from paceline.plan.cost.advice import in_bf16
from paceline.plan.cost.from_plan import adapter_work, cluster_of_cpu, cluster_of_hardware
from paceline.plan.cost.memory.optimizer_bytes import OptimizerStates
from paceline.plan.cost.report import settings, short_mesh
from paceline.plan.cost.search import GIB, Candidate, SearchSpec, best_of_each, ranked, search
from paceline.plan.features.lora import adapter_of
from paceline.plan.hardware.probe import Hardware
from paceline.plan.plan import Decision, Plan
from paceline.plan.strategies.job import Job
from paceline.plan.strategies.spec import missing_package, strategy_spec

NAME = "fastest"
KEY = "training.distributed_strategy"
TRIED = 4  # layouts to try of a strategy before giving it up


def plan_fastest(job: Job, make: Callable[[Job], Plan]) -> Plan:
    """Return the plan of the fastest layout that fits, from ``make`` on the job with the layout's keys set.

    The rows per optimizer step stay as configured; its decisions list the alternatives. Raises ConfigError if
    nothing can be predicted, fits, or can be planned.
    """
    spec = _search_spec(job)
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
            *(
                codes.PLAN_FASTEST_CHOOSES(f"training.{key}", str(value)[:60], key=key)
                for key, value in taken.items()
            )
        )
    # Sizes and speeds must be known.
    per_node = max(1, job.world_size // max(1, job.num_nodes))
    cluster = (
        cluster_of_cpu(hardware, per_node)
        if hardware.device == "cpu"
        else cluster_of_hardware(hardware, job.num_nodes)
    )
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
    )


def may_be(candidate: Candidate, hardware: Hardware) -> bool:
    """Whether this machine has the layout's packages and, for offloading, separate host memory."""
    if missing_package(strategy_spec(candidate.layout.strategy), hardware):
        return False
    return hardware.device != "cpu" or candidate.work.offload == "none"  # nothing to offload to


def _explained(plan: Plan, taken: Candidate, found: list[Candidate], refused: dict[str, str]) -> Plan:
    speed = taken.work.step_tokens / taken.step
    how = (
        f"{short_mesh(taken)}, micro-batch {taken.work.micro_batch} ×"
        f" {taken.work.accumulation}{', recomputed' if taken.work.recompute == 'full' else ''}"
    )
    reason = (
        f"the fastest of {len(found)} predicted layouts: {how}: {speed:,.0f} tokens/s,"
        f" {taken.bytes / GIB:.1f} GiB of a limit of {taken.limit / GIB:.1f}"
    )
    others = []
    for best in best_of_each(found):
        if best.strategy == taken.strategy:
            continue
        why = (
            best.binding
            or refused.get(best.strategy)
            or f"not faster: {best.work.step_tokens / best.step:,.0f} tokens/s"
        )
        others.append(Decision(f"not {best.strategy}", short_mesh(best), why))
    decisions = tuple(replace(d, reason=reason) if d.subject == KEY else d for d in plan.decisions)
    return replace(plan, strategy_reason=reason, decisions=(*decisions, *others))


def _nothing(spec: SearchSpec, found: list[Candidate], refused: dict[str, str]) -> Diagnostic:
    more = in_bf16(spec, found[0]) if found and spec.adapter is None else []
    why = [f"{name}: {what}" for name, what in refused.items()]
    why += [f"{c.strategy}: {c.binding}" for c in best_of_each(found) if c.binding]
    return codes.PLAN_FASTEST_NOTHING(
        KEY,
        "; ".join(why)[:400],
        hint="; ".join(["use more memory or devices, a smaller data.max_length, or lora", *more]),
    )
