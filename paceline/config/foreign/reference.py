"""``python -m paceline.config.foreign.reference``: docs/foreign-configs.md, from the tables that decide."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from paceline.config.foreign import accelerate, fsdp
from paceline.config.foreign import deepspeed_verdicts as verdicts

_HEAD = """\
# Configuration files of other systems

<!-- made by `python -m paceline.config.foreign.reference`; do not edit -->

DeepSpeed JSON, FSDP settings and the YAML of `accelerate config` are read as the lowest layer: the YAML, the environment and the command line win, and a
value that they override is named with both places. Each key is kept, translated with a note, or refused with `file:line` and the reason.

```yaml
training:
  deepspeed: ds.json                  # or {config_path: ds.json}, or the settings themselves; --deepspeed_config ds.json wins
  fsdp: full_shard auto_wrap          # words of Transformers, a list, or true
  fsdp_config: {fsdp_version: 2}      # a mapping, or a JSON or YAML file
  accelerate_config: accelerate.yaml  # precision, processes, nodes, and its FSDP, DeepSpeed, Megatron and parallelism blocks
```

`python scripts/intake.py [--notes] FILE …` says of any such file whether it is taken, and what is translated or refused.

Who owns what: micro-batch, accumulation, clipping, precision, optimizer, learning rate and schedule become keys of `training`, which own them from then on.
What the JSON alone says (ZeRO, communication, offload, profiling) stays there. `"auto"` means: as `training` says.

## DeepSpeed

The keys are those of DeepSpeed 0.19.8 (`paceline/config/foreign/deepspeed_keys.json`). Old spellings are translated. Comments and commas too many pass, as
with DeepSpeed itself (it reads Hjson). `train_batch_size` with one or both of the other batch keys left out decides them, by DeepSpeed's rule, once the
number of processes is known; three numbers that do not multiply are repaired: micro-batch x accumulation x processes runs, and the plan says so.

A key that DeepSpeed does not know is refused when it resembles one (`gradient_accumulation_step`) or stands outside its block; anything else at the top
level is warned about, as DeepSpeed ignores it. GPT-NeoX files give DeepSpeed's keys, with a warning that the rest is not read.

### Refused

Where the feature is switched on; switched off it passes with a note.

"""


def reference() -> str:
    """The text of docs/foreign-configs.md."""
    switched = _table(("key", "why", "write instead"), ((f"`{key}`", *text) for key, text in verdicts.REFUSED.items()))
    optimizers = _table(
        ("optimizer or schedule", "why"),
        ((f"`{name}`", text) for name, text in {**verdicts.NO_OPTIMIZER, **verdicts.NO_SCHEDULE}.items()),
    )
    granted = {**verdicts.NOT_GRANTED, **verdicts.COMPRESSED}
    parts = [
        _HEAD,
        switched,
        "\nAlso refused: values of the wrong type, `nvme` without `nvme_path`, `gradient_allreduce_op: sum`, Apex amp with ZeRO, Adam without bias correction, with amsgrad or with\n"
        "decay inside the gradient, a literal API key, lists that are a tuning space of DeepSpeed's autotuner, and templates whose placeholders were not filled in.\n\n"
        "These optimizers and schedules are refused unless the YAML names its own (`optim`, `lr_scheduler_type`):\n\n",
        optimizers,
        "\n### Computed exactly instead, with a warning\n\n",
        _table(("asked for", "what runs"), ((f"`{key}`", text) for key, text in granted.items())),
        "\nDeepSpeed's `WarmupLR` and its kin warm up along a logarithm unless `warmup_type` says `linear`; here warm-up is linear, from 0. A schedule ends with\n"
        "the run's last step, whatever `total_num_steps` says. `torch.compile` is not used under DeepSpeed.\n\n"
        "### Left out, with a note\n\nThe result does not depend on them.\n\n",
        _table(("key", "why"), ((f"`{key}`", text) for key, text in verdicts.DROPPED.items())),
        _FSDP,
        ", ".join(f"`{word}`" for word in sorted(fsdp.KNOWN)) + ".\n",
        _ACCELERATE,
        _table(("`distributed_type`", "why it is refused"), ((f"`{key}`", text) for key, text in accelerate.REFUSED.items())),
        "\n`mixed_precision: fp8` is computed in bf16, with a warning. Refused as well: MS-AMP, expert parallelism and CPU-offloaded optimizers of Megatron, `sp_size` together with `cp_size`, and keys that\n"
        "Accelerate does not know (it refuses them too). Said and not needed:\n\n",
        _table(("key", "instead"), ((f"`{key}`", text) for key, (text, _) in accelerate.SAID.items())),
    ]  # fmt: skip
    return "".join(parts)


_FSDP = """
## FSDP

FSDP2 (torch's `fully_shard`) runs, whichever version is asked for; the plan says so where it was version 1. `no_shard` and the hybrid shardings stay what they
are, by a mesh of replicas. `fsdp_config` owns the sharding where `fsdp` says another, as in Transformers, and that is said; without `fsdp` (or
`distributed_strategy: fsdp`) it shards nothing, as in Transformers. `offload` goes with `full_shard` and `shard_grad_op` only. `ignored_modules` is refused.
The `xla` keys are known; `paceline plan` says what they would do, and a start is refused. Keys, each with or without the prefix `fsdp_`:
"""
_ACCELERATE = """
## Accelerate

`num_processes`, `num_machines`, `machine_rank`, `main_process_ip` and `main_process_port` become `launch`; `mixed_precision`, `use_cpu`,
`gradient_accumulation_steps` and `dynamo_config` keys of `training`. The `deepspeed_config` block becomes the JSON that Accelerate makes of it, or the file
that it names; `fsdp_config` without `fsdp_version` is version 1; `parallelism_config` becomes `training.parallelism` (`sp_size`: Ulysses, `cp_size`: all-gather);
Megatron's degrees go to the native mesh. A block of another kind than `distributed_type` has no part, as with Accelerate.

"""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(reference())
