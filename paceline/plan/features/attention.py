"""Choose how attention is computed, and whether several documents share a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.core.units import human_bytes
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.family import IN_ALL, composites
from paceline.plan.model.kernels import (
    LABELS,
    VARLEN_FLASH,
    AttentionCall,
    attention_kernel,
    bytes_of_score,
    flash_version,
    keeps_scores,
)
from paceline.plan.model.shape import PACKED, ModelShape
from paceline.plan.plan import Decision, Precision
from paceline.plan.strategies.spec import Job

# with these, documents of a packed row do not attend to each other, if the family supports it
PACKABLE = ("auto", "paceline")


@dataclass(frozen=True)
class KernelChoice:
    """``name``: the kernel that computes attention; ``models.attention.kernel_choice`` calls the same
    function. ``flash``: the replacement of torch's flash kernel (``flash_version``); empty if none, or if
    another kernel runs. ``whole_scores``: all scores of a document are kept for the backward.
    """

    name: str
    reason: str
    flash: str
    whole_scores: bool


def family_packs(shape: ModelShape | None) -> bool:
    """Whether Paceline's attention keeps packed documents apart in this family; True for an unknown one."""
    return shape is None or shape.rows == PACKED


def choose_attention(
    requested: str, hardware: Hardware, precision: Precision, shape: ModelShape | None, length: int
) -> tuple[Decision, KernelChoice | None]:
    """Return the decision, whose ``choice`` becomes ``Plan.attention``, and the kernel.

    The kernel is None where Transformers' own function computes attention: packed documents then attend to
    each other.
    ``length``: tokens of the longest document.
    """
    subject, padded = "model.attn_implementation", "Transformers' own function, one padded row per document"
    if requested not in PACKABLE:
        return Decision(subject, requested, f"requested: {padded}"), None
    if shape is not None and not family_packs(shape):
        why = f"documents in one row of model_type {shape.model_type} would influence each other's losses"
        return Decision(subject, requested, f"{padded}: {why}"), None
    chosen = choose_kernel(hardware, precision, shape)
    kernel = f"{chosen.name}: {chosen.reason}"
    if chosen.whole_scores and shape is not None:
        size = human_bytes(bytes_of_score(shape.dropout) * shape.heads * length**2)
        kernel += f" ({size} a layer for a document of {length:,} tokens)"
    if shape is not None and shape.carries:
        kernel += (
            "; layers that pass a state from token to token get the documents as rows padded at the end, in"
            " groups of about one length"
        )
    if shape is None:
        kernel += (
            "; a model class that does not support it gets one padded row per document, and the log says so"
        )
    return Decision(subject, requested, kernel), chosen


def selection_decisions(shape: ModelShape | None) -> Iterator[Decision]:
    """Yield decisions on the parts that select an attention's keys."""
    if shape is not None and shape.selects:
        yield Decision(
            "indexers",
            "as loaded",
            "each query reads the keys that an indexer selects, where the model has one: no gradient reaches"
            " it, it is not trained, and exports hold it unchanged",
        )


def choose_packing(job: Job, *, apart: bool) -> Decision:
    """Return the decision on packing: ``choice`` on or off; not applied if documents would see each other.

    ``apart``: attention keeps packed documents apart.
    """
    data, spec, subject = job.config.data, job.algorithm, "data.packing"
    documents = spec.documents_a_row  # before packing, each of up to max_length tokens
    alone = f"one document per row, up to {data.max_length} tokens"
    if documents > 1:
        alone = f"{documents} documents per row, each up to {data.max_length} tokens"
    if spec.on_policy:
        return Decision(
            subject,
            "off",
            "rows are built from rollouts: a micro-batch concatenates its answers, without padding",
        )
    if spec.generation(job.training) is not None:
        return Decision(
            subject,
            "off",
            "the length of the model's own answers is not known in advance; one document per row",
        )
    if not data.packing:
        return Decision(subject, "off", alone)
    if not apart:
        return Decision(
            subject,
            "off",
            f"this attention cannot separate packed documents; {alone}, padded to the longest of its"
            " micro-batch",
            False,
        )
    return Decision(
        subject,
        "on",
        f"rows of {data.max_length * documents} tokens contain several documents that do not attend to each"
        " other; no padding",
    )


def choose_kernel(hardware: Hardware, precision: Precision, shape: ModelShape | None) -> KernelChoice:
    """Return the kernel for attention in Paceline's own layout, and the reason."""
    call = _call(shape)
    name, reason = attention_kernel(
        hardware.device, hardware.capability, precision.compute, call, hardware.uncompiled
    )
    version = ""
    if name == VARLEN_FLASH:
        version = flash_version(hardware.capability, hardware.flash_packages, call)
    return KernelChoice(
        name,
        reason + (f", by {LABELS[version]}, which is installed" if version else ""),
        version,
        keeps_scores(name, call),
    )


def _call(shape: ModelShape | None) -> AttentionCall:
    """Return the attention call of a model's layers, for the choice of a kernel."""
    if shape is None:
        return AttentionCall(128, 128)
    latent, size = shape.latent, shape.head_dim
    widths = (latent.nope + latent.rope, latent.value) if latent is not None else (size, size)
    whole = composites().get(shape.composite) if shape.whole else None
    ahead = whole is not None and whole.both_ways == IN_ALL  # tokens of an image see each other
    return AttentionCall(
        *widths, softcap=shape.softcap, sinks=shape.sinks, dropout=shape.dropout, ahead=ahead
    )
