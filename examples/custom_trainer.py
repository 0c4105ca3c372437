"""A trainer of one's own, as in the distributed training guide: subclass BaseTrainer and wrap self.model.

    python examples/custom_trainer.py                                         one process
    torchrun --nproc_per_node 2 examples/custom_trainer.py config.yaml        two
    PYTHONPATH=examples paceline train config.yaml
    training.distributed_strategy=custom_trainer:CustomDistributedTrainer --nproc 2

Corrected against the guide: device_ids is for GPUs only; DistributedDataParallel refuses it on a CPU.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from paceline.extend import BaseTrainer


class CustomDistributedTrainer(BaseTrainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

        if self.is_distributed:
            self.model = torch.nn.parallel.DistributedDataParallel(
                self.model,
                device_ids=[self.local_rank] if self.device.type == "cuda" else None,
                find_unused_parameters=False,
                bucket_cap_mb=50,
                gradient_as_bucket_view=True,
            )


if __name__ == "__main__":
    config, *overrides = sys.argv[1:] or ["config.yaml"]
    sys.exit(CustomDistributedTrainer.train(config, *overrides))
