"""Choose a model's kernels by device, dtype and model; plan and model call the same functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core.json_types import Json
from paceline.plan.hardware.device_kinds import kind_of
from paceline.plan.model.family import family_of

VARLEN_FLASH = "varlen_flash"  # one flash call over all documents of a row
FLEX = "flex"  # torch's flex_attention, compiled by Triton: one call over all documents of a row
PADDED_SDPA = "padded_sdpa"  # one call over a padded row a document
DOCUMENT_FLASH = "document_flash"  # a CPU's flash kernel, document by document
DOCUMENT_SDPA = "document_sdpa"  # torch's own choice, document by document
DOCUMENT_SCORES = "document_scores"  # all scores of a document, for what no kernel knows

#: bytes a score that DOCUMENT_SCORES keeps: capped, its softmax in fp32 and in the compute dtype (measured:
#: 8.2, and 14.2 in bf16 or 16.3 in fp32 at the peak of the backward)
SCORE_BYTES = 8.0
#: the same with dropout, where torch's own function has no kernel on a CPU either: fp32 in every dtype, the
#: softmax, the mask and what is left (simulated: 12 beside copies of queries, keys and values)
DROPOUT_SCORE_BYTES = 12.0

FLASH_CAPABILITY = 8.0  # Ampere: what torch's flash_api.cpp (``mha_varlen_fwd``) requires
FLASH_MAX_WIDTH, FLASH_MULTIPLE = 256, 8
FLEX_CAPABILITY = 8.0  # bf16 products; before it Triton has few of the instructions
FLEX_MIN_WIDTH, FLEX_MAX_WIDTH = 16, 256  # of one product in Triton; of the tile sizes that torch knows
# widths of a head whose backward lacks shared memory there (torch's sdp_utils.cpp)
_TIGHT_WIDTHS, _TIGHT = range(193, 225), (8.6, 8.9, 12.0, 12.1)

_SOFTCAP = "attn_logit_softcapping"
#: what config classes call the dropout of attention's weights
_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


@dataclass(frozen=True)
class AttentionCall:
    """The features of an attention call: the head dims of queries and keys, and of values; a sliding window
    shorter than a document; scores capped before the softmax; a learned sink per head (in the softmax without
    a value); dropout; and tokens of an image that see later ones.
    """

    width: int
    value_width: int
    window: bool = False
    softcap: bool = False
    sinks: bool = False
    dropout: bool = False
    ahead: bool = False


def attention_kernel(
    device: str, capability: float | None, dtype: str, call: AttentionCall, uncompiled: str = ""
) -> tuple[str, str]:
    """Return the kernel's name and the reason.

    - ``capability``: CUDA's compute capability (7.5), None elsewhere or if unknown
    - ``dtype``: of the activations (``bfloat16``)
    - ``uncompiled``: why Triton's kernels cannot be compiled there (``plan.hardware.device_files``), empty if
      they can
    """
    if device == "cpu":
        return _on_cpu(call)
    if call.softcap or call.ahead:
        obstacle = _no_flex(device, capability, dtype, call, uncompiled)
        if obstacle is None:
            does = "caps the scores as it goes" if call.softcap else "knows which tokens see later ones"
            return FLEX, f"one compiled kernel over all documents of a row, which {does}"
        if not call.softcap:
            return PADDED_SDPA, f"{obstacle}, so one padded call"
        return DOCUMENT_SCORES, f"{obstacle}, so all capped scores of one document are computed per call"
    obstacle = _no_flash(device, capability, dtype, call)
    if obstacle is None:
        return VARLEN_FLASH, "one variable-length flash kernel over all documents of a row"
    return PADDED_SDPA, f"{obstacle}, so one padded call"


def _on_cpu(call: AttentionCall) -> tuple[str, str]:
    if call.softcap or call.sinks:
        why = "a CPU has no kernel for capped scores or sinks, so all scores of one document are computed"
        return DOCUMENT_SCORES, f"{why} per call"
    if call.dropout:
        return (
            DOCUMENT_SDPA,
            "a CPU has no kernel with dropout, so all scores of one document are computed per call",
        )
    if call.window or call.ahead or call.width != call.value_width:
        return DOCUMENT_SDPA, "a CPU has no variable-length kernel, so one call per document"
    return DOCUMENT_FLASH, "a CPU has no variable-length kernel, so one causal call per document"


def keeps_scores(kernel: str, call: AttentionCall) -> bool:
    """Return whether all scores of a document are kept for the backward."""
    return kernel == DOCUMENT_SCORES or (kernel == DOCUMENT_SDPA and call.dropout)


def bytes_of_score(dropout: bool) -> float:
    """Return the bytes that the backward keeps per attention score, if it keeps all scores."""
    return DROPOUT_SCORE_BYTES if dropout else SCORE_BYTES


def flash_width(width: int, value_width: int) -> int:
    """Return the head dim that the flash kernel computes in: other or unequal head sizes are padded with
    zeros."""
    return -(-max(width, value_width) // FLASH_MULTIPLE) * FLASH_MULTIPLE


def has_softcap(config: Mapping[str, Json]) -> bool:
    """Whether a model with this ``config.json`` caps its attention scores."""
    return config.get(_SOFTCAP, family_of(config.get("model_type")).softcap) not in (None, False)


def has_dropout(config: Mapping[str, Json]) -> bool:
    """Whether a model with this ``config.json`` has attention dropout in training."""
    rates = [config[name] for name in _DROPOUTS if name in config]
    return any(rates) if rates else family_of(config.get("model_type")).dropout


def _no_flash(device: str, capability: float | None, dtype: str, call: AttentionCall) -> str | None:
    """Return why the variable-length flash kernel cannot be called, or None."""
    width = flash_width(call.width, call.value_width)
    if not kind_of(device).varlen:
        return f"{device} has no variable-length kernel"
    if dtype not in ("bfloat16", "float16"):
        return f"{dtype} has no variable-length kernel"
    if capability is not None and capability < FLASH_CAPABILITY:
        return (
            f"the variable-length kernel needs compute capability {FLASH_CAPABILITY} (this device:"
            f" {capability})"
        )
    if width > FLASH_MAX_WIDTH or (width in _TIGHT_WIDTHS and capability in _TIGHT):
        return f"the variable-length kernel does not support heads of size {width}"
    if call.dropout:
        return "the variable-length kernel does not support dropout"
    return None


def _no_flex(
    device: str, capability: float | None, dtype: str, call: AttentionCall, uncompiled: str
) -> str | None:
    """Return why the compiled kernel for capped scores cannot be called, or None."""
    width = max(call.width, call.value_width)
    if not kind_of(device).flex:
        return f"{device} has no kernel for capped scores"
    if dtype not in ("bfloat16", "float16"):
        return f"{dtype} has no kernel for capped scores"
    if capability is not None and capability < FLEX_CAPABILITY:
        return (
            f"the kernel for capped scores needs compute capability {FLEX_CAPABILITY} (this device:"
            f" {capability})"
        )
    if uncompiled:
        return f"the kernel for capped scores must be compiled, but {uncompiled}"
    if width > FLEX_MAX_WIDTH:
        return f"the kernel for capped scores does not support heads of size {width}"
    if call.dropout:
        return "the kernel for capped scores does not support dropout"
    return None


FA3, FA4 = "FA3", "FA4"  # torch's names (``torch.nn.attention.list_flash_attention_impls``)
#: by name: capabilities (whole numbers) that torch's adapter asks for, and the largest head of its backward
_VERSIONS = {FA3: ((9,), 256), FA4: ((9, 10), 128)}
LABELS = {FA3: "FlashAttention-3", FA4: "FlashAttention-4"}


def flash_version(capability: float | None, installed: Sequence[str], call: AttentionCall) -> str:
    """Return the first usable of FA3 and FA4, or empty for torch's own. ``installed``: those of the two that
    are installed."""
    width = flash_width(call.width, call.value_width)
    for name, (cards, largest) in _VERSIONS.items():
        if name in installed and capability is not None and int(capability) in cards and width <= largest:
            return name
    return ""


LEAST_CHUNK, MOST_CHUNK = 64 * 2**20, 512 * 2**20
_CHUNK_SHARE = 96


def head_chunk_bytes(memory_bytes: float) -> int:
    """Return the bytes of one chunk on a device with ``memory_bytes`` (0: a CPU, or unknown): a power of two.

    Each chunk reads and writes the head's whole gradient [V, H] in fp32 once. For 16 k tokens and 128 k
    words, chunks of 64 MiB take 94 passes, of 512 MiB 12.
    """
    share = int(memory_bytes) // _CHUNK_SHARE
    return min(MOST_CHUNK, max(LEAST_CHUNK, 1 << share.bit_length() - 1)) if share else LEAST_CHUNK


TRITON = "triton"  # one Triton kernel each, see ``paceline.models.triton_kernels``
ATEN = "aten"  # torch's own fused kernel; norms only
EAGER = "eager"  # several of torch's operations each

TRITON_CAPABILITY = 7.0  # what the kernels are compiled for in tests, and later


def row_kernels(device: str, capability: float | None, uncompiled: str) -> tuple[str, str]:
    """Return ``TRITON`` or ``EAGER`` and the reason.

    ``capability``: CUDA's compute capability, None elsewhere or if unknown; ``uncompiled``: why
    Triton's kernels cannot be compiled there (``plan.hardware.device_files``), empty if they can.
    """
    if capability is None:
        return EAGER, f"Paceline's Triton kernels are for NVIDIA devices, and this is {device}"
    if capability < TRITON_CAPABILITY:
        return EAGER, f"Triton needs compute capability {TRITON_CAPABILITY} (this device: {capability})"
    if uncompiled:
        return EAGER, f"Triton's kernels cannot be compiled: {uncompiled}"
    return TRITON, "one Triton kernel each for norms, gated activations, rotary embedding and loss"
