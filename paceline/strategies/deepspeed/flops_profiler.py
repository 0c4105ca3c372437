"""DeepSpeed's flops profiler for models with fused kernels: registers its hooks early enough, and counts
products from shapes.

By itself it registers its hooks between the root's own, so the root's latency is the time since 1970 and its
counts are lost. It counts calls of ``nn.Linear`` and ``torch.matmul``; here kernels compute projections,
gates and the head without calling those modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paceline.models.flops import multiply_adds
from paceline.protocols.batch import Batch
from paceline.protocols.model import RootModule

if TYPE_CHECKING:
    from paceline.strategies.deepspeed.engine_types import Engine

NOTES_BY_KEY = (
    "flops profile: only matrix products are counted, from shapes: tokens × weight for every layer"
    " (all tokens of the micro-batch, for the head its labelled positions), 2 × length² × width for"
    " attention, per document and as if it were not causal. A layer without latency is computed"
    " inside a kernel of the module around it, which has its time."
)


@contextmanager
def profiled(engine: Engine, root: RootModule, batch: Batch, sequence_ranks: int = 1) -> Iterator[None]:
    """Profile one micro-step inside the context. ``batch`` is this rank's; with ``sequence_ranks`` sharing
    each row it computes its part of the attention heads.
    """
    enabled = bool(engine.flops_profiler_enabled()) and engine.global_rank == 0
    if not enabled or engine.global_steps != engine.flops_profiler_profile_step():
        yield
        return
    profiler = engine.flops_profiler
    profiler.start_profile()
    profiler.start_profile = _nothing  # a second call would wrap everything twice
    seen: list[int] = []
    trunk = root.hf.base_model
    hook = trunk.register_forward_hook(lambda module, args, out: seen.append(out[0].shape[:-1].numel()))
    try:
        yield
    finally:
        hook.remove()
        del profiler.start_profile
    count_products(root, batch, sum(seen), sequence_ranks)
    print(NOTES_BY_KEY, flush=True)


def _nothing(ignore_list: None = None) -> None:
    pass


def count_products(root: RootModule, batch: Batch, tokens: int, sequence_ranks: int = 1) -> None:
    """Set every module's multiply-adds (and FLOP, twice as many) of its own products, in the attributes that
    the profiler reads.
    """
    for module, count in multiply_adds(root, batch, tokens, sequence_ranks).items():
        vars(module).update(__macs__=count, __flops__=2 * count)
