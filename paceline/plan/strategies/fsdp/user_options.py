"""Read FSDP's options: ``training.fsdp`` and ``training.fsdp_config`` (normalized by ``config.foreign``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.config.sections.training import TrainingSection

SHARDINGS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
KEY, CONFIG = "training.fsdp", "training.fsdp_config"
#: Settings that cannot be changed here, and why.
FIXED = {
    "use_orig_params": "FSDP2 keeps every parameter under its own name",
    "limit_all_gathers": "FSDP2 frees gathered weights in stream order, so they never accumulate",
    "sync_module_states": "every rank starts with rank 0's weights",
}
SIZE_BASED_DEFAULT = 100_000_000  # torch's own default of size_based_auto_wrap_policy


@dataclass(frozen=True)
class FsdpAsked:
    """FSDP settings as configured. ``sharding`` and ``wrap`` (transformer, size, none) are None if not set.

    ``version``: 1 or 2 as configured. ``fixed``: which of ``FIXED`` are configured, and whether they match.
    """

    sharding: str | None
    offload: bool
    wrap: str | None
    classes: tuple[str, ...]
    min_num_params: int
    backward_prefetch: str
    forward_prefetch: bool
    meta_start: bool
    version: int | None
    cpu_ram_efficient_loading: bool | None
    state_dict_type: str
    fixed: Mapping[str, bool]


def read_fsdp(training: TrainingSection) -> FsdpAsked:
    """Return the FSDP settings of the config."""
    words = (training.fsdp or "").lower().split()
    given = training.fsdp_config
    settings = {
        key: value for key, value in (given if isinstance(given, dict) else {}).items() if value is not None
    }
    # The wrap policy, named or implied by other keys.
    classes = tuple(map(str, settings.get("transformer_layer_cls_to_wrap") or ()))
    smallest = int(settings.get("min_num_params") or 0)
    wrap = settings.get("auto_wrap_policy")
    if wrap is None and (classes or "auto_wrap" in words):
        wrap = "transformer"
    elif wrap is None and smallest > 0:
        wrap = "size"
    if wrap == "size" and smallest <= 0:
        smallest = SIZE_BASED_DEFAULT
    # The sharding, or FSDP2's reshard_after_forward.
    sharding = next((word for word in words if word in SHARDINGS), None)
    if sharding is None and isinstance(settings.get("reshard_after_forward"), bool):
        sharding = "full_shard" if settings["reshard_after_forward"] else "shard_grad_op"
    return FsdpAsked(
        sharding=sharding,
        offload="offload" in words or settings.get("cpu_offload") is True,
        wrap=wrap,
        classes=classes,
        min_num_params=smallest,
        backward_prefetch=str(settings.get("backward_prefetch") or "backward_pre"),
        forward_prefetch=settings.get("forward_prefetch") is True,
        meta_start=settings.get("cpu_ram_efficient_loading", True) is not False,
        version=settings.get("version"),
        cpu_ram_efficient_loading=settings.get("cpu_ram_efficient_loading"),
        state_dict_type=str(settings.get("state_dict_type") or ""),
        fixed={key: settings[key] is True for key in FIXED if key in settings},
    )
