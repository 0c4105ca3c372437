"""One rank of a training under FSDP2, saved by Accelerate: ``python foreign_accelerate.py FOLDER TOKENIZER``.

Saves after three steps as ``save_state`` does (which shards on accelerators only); rank 0 writes the losses
of those after it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import save_fsdp_model, save_fsdp_optimizer
from foreign_training import RATE, SAVED, STEPS, build, collate, groups, rate, token_rows
from torch.distributed.fsdp import fully_shard


def main(folder: Path, tokenizer: Path) -> None:
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    accelerator = Accelerator(cpu=True)
    model = build()
    model.config.save_pretrained(folder / "saved")
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(groups(model), lr=RATE)
    rank = accelerator.process_index
    batch = collate(token_rows(tokenizer))
    mine = {key: value[rank::2] for key, value in batch.items()}
    tokens = int((batch["labels"][:, 1:] != -100).sum())
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        logits = model(input_ids=mine["input_ids"], attention_mask=mine["attention_mask"]).logits
        total = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), mine["labels"][:, 1:].flatten(), ignore_index=-100, reduction="sum"
        )
        (total * 2 / tokens).backward()  # FSDP divides by two ranks
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        whole = total.detach() / tokens
        torch.distributed.all_reduce(whole)
        losses.append(float(whole))
        if step + 1 == SAVED:
            save_fsdp_model(plugin, accelerator, model, str(folder / "saved"))
            save_fsdp_optimizer(plugin, accelerator, optimizer, model, str(folder / "saved"))
    if rank == 0:
        (folder / "losses.json").write_text(json.dumps(losses[SAVED:]))
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
