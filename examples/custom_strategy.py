"""A strategy of one's own: DDP that sends gradients in half the bytes.

    PYTHONPATH=examples paceline train config.yaml \\
        training.distributed_strategy=custom_strategy:CompressedDDP training.strategy_options.dtype=float16
        --nproc 2

A strategy subclasses ``paceline.extend.Strategy`` (or a finished one, as here) and says how a module
is wrapped (``wrap``) or how a window ends (``finish``); losses, evaluation, checkpoints and resume come with
it. ``self.options`` is ``training.strategy_options``, ``self.world`` the process group, ``self.plan``
everything that was decided.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.extend import DDP, Role

HOOKS = {"float16": fp16_compress_hook, "bfloat16": bf16_compress_hook}  # torch takes bfloat16 with nccl only


class CompressedDDP(DDP):
    """Gradients are cast before they are averaged and back afterwards: less traffic, a little less exact."""

    def wrap(self, role: Role, root: nn.Module) -> nn.Module:
        """DDP with one of torch's compression hooks. In a world of one there is nothing to send."""
        module = super().wrap(role, root)
        if isinstance(module, DistributedDataParallel):
            module.register_comm_hook(None, HOOKS[str(self.options.get("dtype", "float16"))])
        return module
