"""Backend, attention, optimizer and smaller options: each requested one is applied, or reported as off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paceline.config.idle import IDLE
from paceline.config.schema import Config, field_of
from paceline.config.sections.data import DataSection
from paceline.config.sections.training import TrainingSection
from paceline.core.units import human_bytes
from paceline.plan.hardware.kinds import CPU, CUDA, is_accelerator, kind_of
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.attention_kernel import (
    DOCUMENT_SCORES,
    SCORE_BYTES,
    VARLEN_FLASH,
    AttentionCall,
    attention_kernel,
)
from paceline.plan.model.flash_version import LABELS, flash_version
from paceline.plan.model.row_kernels import row_kernels
from paceline.plan.model.shape import PACKED, ModelShape
from paceline.plan.plan import Decision, Precision
from paceline.plan.recomputation import KINDS, kept_kinds
from paceline.plan.strategies.base import strategy_spec


class Explain(Protocol):
    """Record one decision."""

    def __call__(self, subject: str, choice: str, reason: str, granted: bool = True) -> None: ...


# with these, documents of a packed row do not attend to each other, if the family supports it
PACKABLE = ("auto", "paceline")


def choose_backend(requested: str, hardware: Hardware, timeout_seconds: int) -> tuple[str, Decision]:
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
            f"{reason}; the timeout of a collective is {timeout_seconds} s (training.ddp_timeout)",
        )
    reason = "requested"
    if requested == CPU.backend and is_accelerator(hardware.device):
        kind = kind_of(hardware.device)
        reason += f"; on {kind.label} devices {kind.backend} is several times faster" if kind.backend else ""
    return requested, Decision(
        subject,
        requested,
        f"{reason}; the timeout of a collective is {timeout_seconds} s (training.ddp_timeout)",
    )


def keeps_apart(requested: str, shape: ModelShape | None) -> bool:
    """Whether packed documents do not attend to each other: Paceline's attention on a supporting family.

    An unknown family is assumed to support it.
    """
    return requested in PACKABLE and (shape is None or shape.rows == PACKED)


def choose_attention(
    requested: str, hardware: Hardware, precision: Precision, shape: ModelShape | None, length: int
) -> Decision:
    """Return the decision on the attention implementation; its ``choice`` becomes ``Plan.attention``.

    ``length``: tokens of the longest document.
    """
    subject = "model.attn_implementation"
    if requested not in PACKABLE:
        return Decision(
            subject, requested, "requested: Transformers' own function, one padded row per document"
        )
    if not keeps_apart(requested, shape):
        assert shape is not None
        why = f"documents in one row of model_type {shape.model_type} would influence each other's losses"
        return Decision(subject, requested, f"Transformers' own function, one padded row per document: {why}")
    chosen = choose_kernel(hardware, precision, shape)
    kernel = f"{chosen.name}: {chosen.reason}"
    if chosen.whole_scores and shape is not None:
        size = human_bytes(SCORE_BYTES * shape.heads * length**2)
        kernel += f" ({size} a layer for a document of {length:,} tokens)"
    if shape is not None and shape.carries:
        kernel += (
            "; layers that pass a state from token to token get the documents as rows padded at the end, in"
            " groups of about one length"
        )
    return Decision(
        subject,
        requested,
        (
            kernel
            if shape is not None
            else (
                f"{kernel}; a model class that does not support it gets one padded row per"
                " document, and the log says so"
            )
        ),
    )


def choose_packing(
    data: DataSection, *, documents: int, prompts: bool, answered: bool, apart: bool
) -> Decision:
    """Return the decision on packing: ``choice`` on or off; not applied if documents would see each other.

    ``documents``: of a row before packing, each of up to ``max_length`` tokens; ``prompts``: rows are
    prompts, answered in training; ``answered``: the model generates the answers of some or all rows in
    training; ``apart``: attention keeps packed documents apart.
    """
    subject, alone = "data.packing", f"one document per row, up to {data.max_length} tokens"
    if documents > 1:
        alone = f"{documents} documents per row, each up to {data.max_length} tokens"
    if prompts:
        why = "rows are built from rollouts: a micro-batch concatenates its answers, without padding"
        return Decision(subject, "off", why)
    if answered:
        why = "the length of the model's own answers is not known in advance; one document per row"
        return Decision(subject, "off", why)
    if not data.packing:
        return Decision(subject, "off", alone)
    if not apart:
        why = (
            f"this attention cannot separate packed documents; {alone}, padded to the longest of its"
            " micro-batch"
        )
        return Decision(subject, "off", why, False)
    room = data.max_length * documents
    together = f"rows of {room} tokens contain several documents that do not attend to each other"
    return Decision(subject, "on", f"{together}; no padding")


@dataclass(frozen=True)
class KernelChoice:
    """``name``: the kernel that computes attention; ``models.kernel_choice`` asks the same function.
    ``flash``: what replaces torch's flash kernel (``flash_version``), empty: nothing, or another kernel runs.
    """

    name: str
    reason: str
    flash: str

    @property
    def whole_scores(self) -> bool:
        """Whether all scores of a document are kept for the backward."""
        return self.name == DOCUMENT_SCORES


def choose_kernel(hardware: Hardware, precision: Precision, shape: ModelShape | None) -> KernelChoice:
    """Return which kernel computes attention in Paceline's own layout, and why."""
    call = _call(shape)
    name, reason = attention_kernel(
        hardware.device, hardware.capability, precision.compute, call, hardware.uncompiled
    )
    version = ""
    if name == VARLEN_FLASH:
        version = flash_version(hardware.capability, hardware.flash_packages, call)
    return KernelChoice(
        name, reason + (f", by {LABELS[version]}, which is installed" if version else ""), version
    )


def _call(shape: ModelShape | None) -> AttentionCall:
    """Return what the layers of such a model ask of the kernel."""
    if shape is None:
        return AttentionCall(128, 128)
    if shape.latent is not None:
        return AttentionCall(shape.latent.nope + shape.latent.rope, shape.latent.value)
    return AttentionCall(shape.head_dim, shape.head_dim, softcap=shape.softcap, sinks=shape.sinks)


def row_kernel_decisions(training: TrainingSection, hardware: Hardware) -> tuple[Decision, ...]:
    """Return the decision on kernels for norms and the like on a device; none for a CPU.
    ``models.kernel_choice`` asks the same function.
    """
    if not is_accelerator(hardware.device):
        return ()
    name, reason = row_kernels(hardware.device, hardware.capability, hardware.uncompiled)
    compiled = "; torch.compile joins what it compiles by itself" if training.torch_compile else ""
    return (Decision("row-wise kernels", name, f"{reason}{compiled}; the log names those that ran"),)


def option_decisions(
    training: TrainingSection, hardware: Hardware, strategy: str, *, prompts: bool
) -> list[Decision]:
    """Return decisions on all other options, applied or not (see also ``idle_decisions``).

    ``prompts``: rows are prompts, answered in training. For CUDA, what is said of pinned memory describes
    ``protocols.batch.Batch.pinned``.
    """
    on_cpu, made = hardware.device == "cpu", list[Decision]()

    def explain(subject: str, choice: str, reason: str, granted: bool = True) -> None:
        made.append(Decision(subject, choice, reason, granted))

    if training.gradient_checkpointing:
        kept = kept_kinds(training)
        named = " and ".join(KINDS[kind] for kind in kept)
        explain(
            "training.gradient_checkpointing",
            "on" if not kept else f"on, keeps {', '.join(kept)}",
            "requested: activations are recomputed in the backward, for about a third more compute"
            if not kept
            else f"requested: of each layer {named} are kept, the rest is recomputed in the backward",
        )
    if training.torch_compile:
        kinds = "each decoder layer, one graph for all of a kind and any length"
        cost = "the first steps compile, for a time that is not known in advance: the log counts the seconds"
        fallback = "a layer that torch cannot trace runs uncompiled, and the log says why"
        explain("training.torch_compile", "on", f"requested: {kinds}; {cost}; {fallback}")
    workers, pin = training.dataloader_num_workers, training.dataloader_pin_memory
    if pin and prompts:
        explain(
            "training.dataloader_pin_memory",
            "off",
            "rows are built from rollouts, not loaded from a data set",
            False,
        )
    elif pin and on_cpu:
        why = "pinned memory speeds up copies to a CUDA device, but this run has none"
        explain("training.dataloader_pin_memory", "off", why, False)
    elif pin:
        explain("training.dataloader_pin_memory", "on", "batches are copied to the device from pinned memory")
    if workers and prompts:
        why = "a rollout uses the weights of its step, so nothing can be loaded ahead"
        explain("training.dataloader_num_workers", "0", why, False)
    elif workers:
        ahead = training.dataloader_prefetch_factor or 2
        why = (
            f"threads prepare the batches of the next {workers * ahead} steps while one runs; the"
            " order does not change"
        )
        explain("training.dataloader_num_workers", str(workers), why)
    for key, requested in (
        ("bf16_full_eval", training.bf16_full_eval),
        ("fp16_full_eval", training.fp16_full_eval),
    ):
        if requested:  # ``plan.precision`` refuses it with another compute dtype
            explain(f"training.{key}", "on", "evaluation casts the weights as training does")
    _engine_options(training, strategy, explain)
    return made


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


def idle_decisions(config: Config) -> list[Decision]:
    """Return a decision for each key without effect whose value differs from the default."""
    found = []
    for path, reason in IDLE.items():
        section, _, name = path.partition(".")
        requested, info = getattr(getattr(config, section), name), field_of(path)
        if info is not None and requested != info.default:
            found.append(Decision(path, str(requested).lower(), reason, False))
    return found
