"""Which kernel computes the attention of packed documents: a function of device, dtype and model, which the
plan asks beforehand and the model at each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core.json_types import Json
from paceline.plan.hardware.kinds import kind_of

VARLEN_FLASH = "varlen_flash"  # one flash call over all documents of a row
PADDED_SDPA = "padded_sdpa"  # one call over a padded row a document
DOCUMENT_FLASH = "document_flash"  # a CPU's flash kernel, document by document
DOCUMENT_SDPA = "document_sdpa"  # torch's own choice, document by document
DOCUMENT_SCORES = "document_scores"  # all scores of a document, for what no kernel knows

FLASH_CAPABILITY = 8.0  # Ampere: what torch's flash_api.cpp (``mha_varlen_fwd``) requires
FLASH_MAX_WIDTH, FLASH_MULTIPLE = 256, 8
# widths of a head whose backward lacks shared memory there (torch's sdp_utils.cpp)
_TIGHT_WIDTHS, _TIGHT = range(193, 225), (8.6, 8.9, 12.0, 12.1)

# families whose layers (some of them, in mimo_v2_flash) have a learned sink a head
_SINKS = frozenset(
    {"deepseek_v4", "flint", "gpt_oss", "granite_swa", "granitemoe_swa", "hy_v4", "mimo_v2_flash"}
)
_SOFTCAP, _CAPPED = "attn_logit_softcapping", frozenset({"gemma2", "vaultgemma"})  # capped by default


@dataclass(frozen=True)
class AttentionCall:
    """What a call of attention needs: the head dim of queries and keys, and of values; a sliding window
    shorter than a document; scores that are changed before the softmax (softcap, sinks); dropout.
    """

    width: int
    value_width: int
    window: bool = False
    own_scores: bool = False
    dropout: bool = False


def attention_kernel(
    device: str, capability: float | None, dtype: str, call: AttentionCall
) -> tuple[str, str]:
    """Return the kernel's name and the reason.

    ``capability``: CUDA's compute capability (7.5), None elsewhere or if unknown; ``dtype``: of the
    activations (``bfloat16``).
    """
    if call.own_scores:
        return (
            DOCUMENT_SCORES,
            (
                "no kernel supports softcapped scores or sinks, so all scores of one document are"
                " computed per call"
            ),
        )
    if device == "cpu":
        if call.window or call.dropout or call.width != call.value_width:
            return DOCUMENT_SDPA, "a CPU has no variable-length kernel, so one call per document"
        return DOCUMENT_FLASH, "a CPU has no variable-length kernel, so one causal call per document"
    obstacle = _no_flash(device, capability, dtype, call)
    if obstacle is None:
        return VARLEN_FLASH, "one variable-length flash kernel over all documents of a row"
    return PADDED_SDPA, f"{obstacle}, so one padded call"


def has_own_scores(config: Mapping[str, Json]) -> bool:
    """Whether a model with this ``config.json`` changes its scores before the softmax: softcap or sinks."""
    family = config.get("model_type")
    return family in _SINKS or config.get(_SOFTCAP, family in _CAPPED) not in (None, False)


def _no_flash(device: str, capability: float | None, dtype: str, call: AttentionCall) -> str | None:
    """Return why the variable-length flash kernel cannot be called, or None."""
    width = call.width
    if not kind_of(device).varlen:
        return f"{device} has no variable-length kernel"
    if dtype not in ("bfloat16", "float16"):
        return f"{dtype} has no variable-length kernel"
    if capability is not None and capability < FLASH_CAPABILITY:
        return (
            f"the variable-length kernel needs compute capability {FLASH_CAPABILITY} (this device:"
            f" {capability})"
        )
    if width != call.value_width:
        return (
            f"the variable-length kernel needs all heads to have one size (here {width} and"
            f" {call.value_width})"
        )
    if width % FLASH_MULTIPLE or width > FLASH_MAX_WIDTH or (width in _TIGHT_WIDTHS and capability in _TIGHT):
        return f"the variable-length kernel does not support heads of size {width}"
    if call.dropout:
        return "the variable-length kernel does not support dropout"
    return None
