"""Backend, attention, optimizer and smaller options: each requested one is applied, or reported as off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Protocol

from paceline.config.schema import Config, field_of
from paceline.config.sections.lora import LoraSection
from paceline.config.sections.model import IDLE
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.training_scale import Parallelism
from paceline.plan.hardware.device_kinds import CPU, CUDA, is_accelerator, kind_of
from paceline.plan.hardware.probe import Hardware
from paceline.plan.mesh import Mesh
from paceline.plan.model.kernels import row_kernels
from paceline.plan.plan import KEPT_KINDS, AdapterSpec, Decision, Plan
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.timeouts import WaitLimits


class Explain(Protocol):
    """Record one decision."""

    def __call__(self, subject: str, choice: str, reason: str, granted: bool = True) -> None: ...


def choose_backend(requested: str, hardware: Hardware, limits: WaitLimits) -> tuple[str, Decision]:
    """Return the process group's backend and the decision; the config rules refuse unavailable ones."""
    subject = "training.ddp_backend"
    if requested == "auto":
        kind = kind_of(hardware.device)
        backend = kind.backend or CPU.backend
        reason = (
            "auto: processes on CPUs communicate with gloo"
            if backend == CPU.backend
            else "auto: NVIDIA devices communicate with NCCL"
            if kind is CUDA
            else f"auto: {kind.label} devices communicate with {backend}"
        )
        return backend, Decision(
            subject,
            backend,
            f"{reason}; {limits.text()}",
        )
    reason = "requested"
    if requested == CPU.backend and is_accelerator(hardware.device):
        kind = kind_of(hardware.device)
        reason += f"; on {kind.label} devices {kind.backend} is several times faster" if kind.backend else ""
    return requested, Decision(
        subject,
        requested,
        f"{reason}; {limits.text()}",
    )


def row_kernel_decisions(plan: Plan, hardware: Hardware) -> tuple[Decision, ...]:
    """Return the decision on kernels for norms and the like on a device; none for a CPU.
    ``models.attention.kernel_choice`` asks the same function.
    """
    if not is_accelerator(hardware.device):
        return ()
    name, reason = row_kernels(hardware.device, hardware.capability, hardware.uncompiled)
    compiled = "; torch.compile joins what it compiles by itself" if plan.compile else ""
    return (Decision("row-wise kernels", name, f"{reason}{compiled}; the log names those that ran"),)


def compute_decisions(plan: Plan) -> Iterator[Decision]:
    """Yield the plan's lines about recomputation and torch.compile."""
    if plan.recompute:
        kept = plan.recompute_keeps
        kept_outputs = " and ".join(KEPT_KINDS[kind] for kind in kept)
        yield Decision(
            "training.gradient_checkpointing",
            "on" if not kept else f"on, keeps {', '.join(kept)}",
            "requested: activations are recomputed in the backward, for about a third more compute"
            if not kept
            else f"requested: of each layer {kept_outputs} are kept, the rest is recomputed in the backward",
        )
    if plan.compile:
        kinds = "each decoder layer, one graph for all of a kind and any length"
        cost = "the first steps compile, for a time that is not known in advance: the log counts the seconds"
        fallback = "a layer that torch cannot trace runs uncompiled, and the log says why"
        yield Decision("training.torch_compile", "on", f"requested: {kinds}; {cost}; {fallback}")


def option_decisions(
    training: TrainingSection, hardware: Hardware, strategy: str, *, prompts: bool
) -> list[Decision]:
    """Return decisions on all other options, applied or not (see also ``idle_decisions``).

    ``prompts``: rows are prompts, answered in training. The text about pinned memory describes
    ``protocols.batch.Batch.pinned``.
    """
    on_cpu, decisions = hardware.device == "cpu", list[Decision]()

    def explain(subject: str, choice: str, reason: str, granted: bool = True) -> None:
        decisions.append(Decision(subject, choice, reason, granted))

    # Pinned memory is on by default, so where it cannot act no request is refused
    workers, pin = training.dataloader_num_workers, training.dataloader_pin_memory
    if pin and prompts:
        explain(
            "training.dataloader_pin_memory",
            "off",
            "rows are built from rollouts, not loaded from a data set",
        )
    elif pin and on_cpu:
        explain(
            "training.dataloader_pin_memory",
            "off",
            "pinned memory speeds up copies to a CUDA device, but this run has none",
        )
    elif pin:
        explain("training.dataloader_pin_memory", "on", "batches are copied to the device from pinned memory")
    if workers and prompts:
        explain(
            "training.dataloader_num_workers",
            "0",
            "a rollout uses the weights of its step, so nothing can be loaded ahead",
            False,
        )
    elif workers:
        ahead = training.dataloader_prefetch_factor or 2
        explain(
            "training.dataloader_num_workers",
            str(workers),
            f"threads prepare the batches of the next {workers * ahead} steps while one runs; the"
            " order does not change",
        )
    for key, requested in (
        ("bf16_full_eval", training.bf16_full_eval),
        ("fp16_full_eval", training.fp16_full_eval),
    ):
        if requested:  # ``plan.features.precision`` refuses it with another compute dtype
            explain(f"training.{key}", "on", "evaluation casts the weights as training does")
    _engine_options(training, strategy, explain)
    return decisions


def _engine_options(training: TrainingSection, strategy: str, explain: Explain) -> None:
    """Explain options of DDP and ZeroRedundancyOptimizer; under other strategies they have no effect."""
    requested: dict[str, dict[str, int | bool | None]] = {
        "DistributedDataParallel": {
            "ddp_find_unused_parameters": training.ddp_find_unused_parameters,
            "ddp_bucket_cap_mb": training.ddp_bucket_cap_mb,
            "ddp_broadcast_buffers": training.ddp_broadcast_buffers,
            "ddp_static_graph": training.ddp_static_graph or None,
        },
        "ZeroRedundancyOptimizer": {"parameters_as_bucket_view": training.parameters_as_bucket_view or None},
    }
    for owner, name, value in (
        (owner, *item) for owner, values in requested.items() for item in values.items()
    ):
        if value is None:
            continue
        if name in strategy_spec(strategy).training_keys:
            explain(f"training.{name}", str(value).lower(), f"requested, passed to {owner}")
        else:
            explain(
                f"training.{name}",
                "off",
                f"this is an option of {owner}, but the strategy is '{strategy}'",
                False,
            )


#: Keys of ``training.parallelism`` that act on one mesh axis alone; strategies speak of sequence_parallel.
_AXIS_OF = {
    "pp_schedule": "pp",
    "pp_stages_per_rank": "pp",
    "cp_method": "cp",
    "loss_parallel": "tp",
}


def idle_decisions(config: Config, mesh: Mesh, adapter: AdapterSpec | None) -> list[Decision]:
    """Return a decision for each key that has no effect and no default value: in general, on ``mesh``, or
    with an ``adapter`` from a folder.
    """
    decisions = []
    keys = config.training.parallelism or Parallelism()
    for name, axis in _AXIS_OF.items():
        requested = getattr(keys, name)
        if getattr(mesh, axis) == 1 and requested != Parallelism.model_fields[name].default:
            decisions.append(
                Decision(
                    f"training.parallelism.{name}",
                    str(requested).lower(),
                    f"{axis}_size is 1: it acts with {axis}_size: 2 or more",
                    False,
                )
            )
    for path, reason in IDLE.items():
        section, _, name = path.partition(".")
        requested, info = getattr(getattr(config, section), name), field_of(path)
        if info is not None and requested != info.default:
            decisions.append(Decision(path, str(requested).lower(), reason, False))
    started = config.lora is not None and adapter is not None and bool(adapter.start)
    has = asdict(adapter) if started and adapter else {}
    for name, value in config.lora.model_dump().items() if config.lora and started else ():
        if name in has and value not in (LoraSection.model_fields[name].default, has[name]):
            both = (value, has[name])
            requested_text, used = (
                f"[{', '.join(v)}]" if isinstance(v, tuple) else str(v).lower() for v in both
            )
            decisions.append(
                Decision(
                    f"lora.{name}",
                    requested_text,
                    f"the adapter of adapter_name_or_path has {used}, and is trained on as it is",
                    False,
                )
            )
    return decisions
