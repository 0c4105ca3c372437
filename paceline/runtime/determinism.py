"""``training.full_determinism``: torch's deterministic kernels, or an error that names the operation without
one.
"""

from __future__ import annotations

import torch


def use_deterministic_kernels() -> None:
    """Make every operation of this process deterministic; one that has no such kernel raises RuntimeError by
    name. What libraries read before torch is imported is set by ``launch.device_settings``.
    """
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
