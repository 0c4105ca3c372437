"""``python -m paceline.config.foreign.reference``: generate docs/foreign-configs.md from the tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from paceline.config.foreign import accelerate, fsdp
from paceline.config.foreign import deepspeed_verdicts as verdicts
from paceline.config.foreign import launcher_variables as variables

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

`python scripts/intake.py [--notes] FILE …` says of any such file whether it is taken, and what is translated or refused. Of files from public repositories:

| files | taken | refused | templates and tuning spaces | no JSON or YAML |
| --- | --- | --- | --- | --- |
| 85 DeepSpeed JSON | 65 | 10 | 9 | 1 |
| 40 `accelerate config` YAML | 37 | 3 | 0 | 0 |
| 9 GPT-NeoX YAML (as DeepSpeed settings) | 7 | 2 | 0 | 0 |
| 67 LLaMA-Factory YAML | 4 | 63 | 0 | 0 |
| 27 TRL and alignment-handbook YAML | 2 | 25 | 0 | 0 |
| 60 axolotl, 11 torchtune, 8 llm-foundry, 8 ArcticTraining, 2 trlX YAML | 0 | 88 | 1 | 0 |

Configs of axolotl, torchtune, verl, OpenRLHF, llm-foundry and others, which lay their keys out in another way, get one sentence that says whose they are and
how a YAML of Paceline's own would begin. LLaMA-Factory's, ms-swift's and TRL's are read, since their keys are Transformers'; what has
no meaning here is listed in one finding.

Who owns what: micro-batch, accumulation, clipping, precision, optimizer, learning rate and schedule become keys of `training`, which own them from then on.
What the JSON alone says (ZeRO, communication, offload, profiling) stays there. `"auto"` means: as `training` says.

## DeepSpeed

The keys are those of DeepSpeed 0.19.8 (`paceline/config/foreign/deepspeed_keys.json`). Old spellings are translated. Comments and commas too many pass, as
with DeepSpeed itself (it reads Hjson). `train_batch_size` with one or both of the other batch keys left out decides them, by DeepSpeed's rule, once the
number of processes is known, rounded down where it does not divide; three numbers that do not multiply are repaired: micro-batch x accumulation x processes runs, and
the plan says so.

An absent key means what it means to DeepSpeed: no `fp16` or `bf16` block is float32, an optimizer without `lr` learns at DeepSpeed's own rate (AdamW 1e-3),
`WarmupDecayLR` without `warmup_max_lr` at 1e-3, a warm-up without `warmup_num_steps` takes 1000 steps. Without `gradient_clipping` the norm is
clipped to 1.0, DeepSpeed's default and `training.max_grad_norm`'s. One difference is said: without a scheduler `training.lr_scheduler_type` holds (DeepSpeed would keep the rate). Any of these keys in the YAML wins.

Schedules are DeepSpeed's own, step by step: `WarmupLR`, `WarmupDecayLR`, `WarmupCosineLR`, `OneCycle` (with `cycle_momentum: false`) and `LRRangeTest` become
`lr_scheduler_type: warmup_lr`, `warmup_decay_lr`, `warmup_cosine_lr`, `one_cycle` and `lr_range_test`. Warm-up goes along a logarithm unless `warmup_type` says `linear`, and
the first two steps stand at its start, since DeepSpeed moves the schedule after each step. Parameters of an optimizer that change its update (`momentum`, `nesterov`, `lr_decay` …) go to
`optim_args`; one that the optimizer does not take is refused.

A key that DeepSpeed does not know is refused when it resembles one (`gradient_accumulation_step`) or stands outside its block; anything else at the top
level is warned about, as DeepSpeed ignores it. GPT-NeoX files give DeepSpeed's keys, with a warning that the rest is not read.

### Refused

Where the feature is switched on; switched off it passes with a note.

"""


def reference() -> str:
    """Return the text of docs/foreign-configs.md."""
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
        "\n`torch.compile` is not used under DeepSpeed. Weight decay leaves biases and norms out, as in Transformers.\n\n"
        "### Left out, with a note\n\nThe result does not depend on them.\n\n",
        _table(("key", "why"), ((f"`{key}`", text) for key, text in verdicts.DROPPED.items())),
        _FSDP,
        ", ".join(f"`{word}`" for word in sorted(fsdp.KNOWN)) + ".\n",
        _ACCELERATE,
        _table(("variable", "why"), ((f"`{name}`", text) for name, text in variables.SAID.items())),
        "\nRefused: " + ", ".join(f"`{name}` ({text})" for name, text in variables.REFUSED.items()) + ".\n",
        "\n### Refused and said\n\n",
        _table(("`distributed_type`", "why it is refused"), ((f"`{key}`", text) for key, text in accelerate.REFUSED.items())),
        "\n`mixed_precision: fp8` is computed in bf16, with a warning. Refused as well: MS-AMP, expert parallelism and CPU-offloaded optimizers of Megatron, `sp_size` together with `cp_size`, and keys that\n"
        "Accelerate does not know (it refuses them too). Said and not needed:\n\n",
        _table(("key", "instead"), ((f"`{key}`", text) for key, (text, _) in accelerate.SAID.items())),
    ]  # fmt: skip
    return "".join(parts)


_FSDP = """
## FSDP

`auto_wrap_policy` (also `wrap_policy`) decides how the model is cut; `min_num_params` beside a class-based policy, or classes beside `SIZE_BASED_WRAP`, have no effect and that is said.
Without a policy `min_num_params` means by size and `transformer_layer_cls_to_wrap` by class; both together are refused.

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
Megatron's degrees go to the native mesh. A block of another kind than `distributed_type` has no part, as with Accelerate; without `mixed_precision` it is float32, as there.

### accelerate launch

`accelerate launch --use_fsdp --mixed_precision bf16 main.py …` and its kin hand their options to the program as variables (`ACCELERATE_*`, `FSDP_*`,
`PARALLELISM_CONFIG_*`, `MEGATRON_LM_*`), which are read as the file above is, and named in `paceline config show` and in the log. What somebody asked for stands above the
YAML and below `PACELINE_…` variables and the command line; what the launcher sets when nobody asks (`--mixed_precision no`, the defaults of FSDP) stands below the YAML. Every
conflict is named with both places: `launch.option_wins`, `launch.option_overridden`. `auto` in the YAML is no conflict. FSDP and DeepSpeed options go into the YAML's own block,
key by key; `--deepspeed_config_file` takes the place of the YAML's file.

accelerate launch keeps `--gradient_accumulation_steps` and `--gradient_clipping` (without DeepSpeed) and the NVMe paths to itself; they are read from its command line. It throws away
`--zero_stage` without `--use_deepspeed`, `--fsdp_…` without `--use_fsdp` and so on: a warning names them. `--cpu --num_processes 2` starts one process, and a warning says so;
`--multi_gpu` starts two on CPUs as well. These variables set nothing:

"""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(reference())
