"""One rank of a training by DeepSpeed itself: ``python foreign_deepspeed.py FOLDER TOKENIZER STAGE``.

Saves after three steps with its own ``save_checkpoint``; rank 0 writes the losses of those after it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import deepspeed
import torch
from foreign_training import RATE, SAVED, STEPS, build, collate, groups, rate, token_rows

from paceline.strategies.deepspeed.import_deepspeed import without_shared_memory_op


def main(folder: Path, tokenizer: Path, stage: int) -> None:
    torch.distributed.init_process_group("gloo")
    with without_shared_memory_op():  # it would be compiled for a minute, and not used
        deepspeed.init_distributed("gloo")
    model = build()
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    optimizer = torch.optim.AdamW(groups(model), lr=RATE)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    rank = torch.distributed.get_rank()
    rows = token_rows(tokenizer)
    batch = collate(rows)
    mine = {key: value[rank::2] for key, value in batch.items()}
    tokens = int((batch["labels"][:, 1:] != -100).sum())
    losses = []
    for step in range(STEPS):
        for group in engine.optimizer.param_groups:
            group["lr"] = rate(step)
        logits = engine(input_ids=mine["input_ids"], attention_mask=mine["attention_mask"]).logits
        total = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), mine["labels"][:, 1:].flatten(), ignore_index=-100, reduction="sum"
        )
        loss = total * 2 / tokens  # the engine divides by two ranks
        engine.backward(loss)
        engine.step()
        whole = loss.detach() / 2
        torch.distributed.all_reduce(whole)
        losses.append(float(whole))
        if step + 1 == SAVED:
            engine.save_checkpoint(str(folder / "saved"))
    if rank == 0:
        model.config.save_pretrained(folder / "saved")
        (folder / "losses.json").write_text(json.dumps(losses[SAVED:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
