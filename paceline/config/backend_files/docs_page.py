"""Generate docs/reference/foreign-configs.md: ``python -m paceline.config.backend_files.docs_page``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from paceline.config.backend_files import fsdp
from paceline.config.backend_files.accelerate import accelerate_file
from paceline.config.backend_files.accelerate import environment as variables
from paceline.config.backend_files.deepspeed import key_verdicts as verdicts

_HEAD = """\
# Configuration files of other systems

[中文](foreign-configs.zh-CN.md) · [Strategies](../how-to/strategies.md) · [Import](../how-to/import.md)

<!-- made by `python -m paceline.config.backend_files.docs_page`; do not edit -->

DeepSpeed JSON, FSDP settings and the YAML of `accelerate config` are read as the lowest layer: the YAML, the
environment and the command line override them, and every overridden value is reported with both places. Each
key is kept, translated with a note, or refused with `file:line` and the reason.

```yaml
training:
  deepspeed: ds.json                  # or {config_path: ds.json}, or the settings; --deepspeed_config wins
  fsdp: full_shard auto_wrap          # words of Transformers, a list, or true
  fsdp_config: {fsdp_version: 2}      # a mapping, or a JSON or YAML file
  accelerate_config: accelerate.yaml  # precision, processes, nodes, FSDP, DeepSpeed, Megatron, parallelism
```

`python scripts/intake.py [--notes] FILE …` reports whether such files are accepted, and what is translated or
refused. For files from public repositories:

| files | accepted | refused | templates and tuning spaces | no JSON or YAML |
| --- | --- | --- | --- | --- |
| 85 DeepSpeed JSON | 65 | 10 | 9 | 1 |
| 40 `accelerate config` YAML | 37 | 3 | 0 | 0 |
| 9 GPT-NeoX YAML (as DeepSpeed settings) | 7 | 2 | 0 | 0 |
| 67 LLaMA-Factory YAML | 4 | 63 | 0 | 0 |
| 27 TRL and alignment-handbook YAML | 2 | 25 | 0 | 0 |
| 60 axolotl, 11 torchtune, 8 llm-foundry, 8 ArcticTraining, 2 trlX YAML | 0 | 88 | 1 | 0 |

Configs of axolotl, torchtune, verl, OpenRLHF, llm-foundry and others have another structure: one message
names the program and shows how an equivalent YAML for Paceline would begin. LLaMA-Factory's, ms-swift's and
TRL's are read, since their keys are Transformers'; their keys without a meaning here are listed in one
message.

Micro-batch, accumulation, clipping, precision, optimizer, learning rate and schedule become keys of
`training`, which hold their values from then on. What only the JSON describes (ZeRO, communication, offload,
profiling) stays in it. `"auto"` means: as `training` says.

## DeepSpeed

The keys are those of DeepSpeed 0.19.8 (`paceline/config/backend_files/deepspeed/keys.json`). Old names are
translated. Comments and trailing commas are allowed, as in DeepSpeed itself (it reads Hjson). If
`train_batch_size` is given without one or both of the other batch keys, they follow from it by DeepSpeed's
rule once the number of processes is known, rounded down if it does not divide evenly. Three numbers that do
not multiply are not an error: the run uses micro-batch x accumulation x processes, and the plan says so.

An absent key means what it means in DeepSpeed: without a `fp16` or `bf16` block the run computes in float32,
an optimizer without `lr` uses DeepSpeed's default (AdamW 1e-3), `WarmupDecayLR` without `warmup_max_lr` 1e-3,
and warm-up without `warmup_num_steps` takes 1000 steps. Without `gradient_clipping` the norm is clipped to
1.0, the default of DeepSpeed and of `training.max_grad_norm`. One difference is reported: without a scheduler
`training.lr_scheduler_type` applies (DeepSpeed would keep the rate constant). Any of these keys in the YAML
takes precedence.

Schedules follow DeepSpeed's step by step: `WarmupLR`, `WarmupDecayLR`, `WarmupCosineLR`, `OneCycle` (with
`cycle_momentum: false`) and `LRRangeTest` become `lr_scheduler_type: warmup_lr`, `warmup_decay_lr`,
`warmup_cosine_lr`, `one_cycle` and `lr_range_test`. Warm-up is logarithmic unless `warmup_type` is `linear`,
and the first two steps have its start value, since DeepSpeed advances the schedule after each step.
Parameters that change an optimizer's update (`momentum`, `nesterov`, `lr_decay` …) become `optim_args`;
unsupported ones are refused.

A key that DeepSpeed does not know is refused if it resembles a known one (`gradient_accumulation_step`) or is
outside its block; any other at the top level gets a warning, as DeepSpeed ignores it. From GPT-NeoX files
DeepSpeed's keys are read, with a warning that the others are not.

### Refused

If the feature is switched on; if it is off, the key is dropped with a note.

"""


def reference() -> str:
    """Return the text of docs/reference/foreign-configs.md."""
    switched = _table(
        ("key", "why", "write instead"), ((f"`{key}`", *text) for key, text in verdicts.REFUSED.items())
    )
    optimizers = _table(
        ("optimizer or schedule", "why"),
        ((f"`{name}`", text) for name, text in {**verdicts.NO_OPTIMIZER, **verdicts.NO_SCHEDULE}.items()),
    )
    parts = [
        _HEAD,
        switched,
        (
            "\nAlso refused: values of the wrong type, `nvme` without `nvme_path`, `gradient_allreduce_op:"
            " sum`, Apex amp with ZeRO, Adam without bias correction, with amsgrad or with\ndecay inside the"
            " gradient, a literal API key, lists (tuning spaces of DeepSpeed's autotuner), and templates with"
            " unfilled placeholders.\n\nThese optimizers and schedules are refused unless the YAML names its"
            " own (`optim`, `lr_scheduler_type`):\n\n"
        ),
        optimizers,
        "\n### Replaced by the exact computation, with a warning\n\n",
        _table(
            ("requested", "what runs"),
            ((f"`{key}`", text) for key, text in {**verdicts.NOT_GRANTED, **verdicts.COMPRESSED}.items()),
        ),
        (
            "\n`torch.compile` is not used under DeepSpeed. Biases and norms have no weight decay, as in"
            " Transformers.\n\n### Dropped, with a note\n\nThe result does not depend on them.\n\n"
        ),
        _table(("key", "why"), ((f"`{key}`", text) for key, text in verdicts.DROPPED.items())),
        _FSDP,
        ", ".join(f"`{word}`" for word in sorted(fsdp.KNOWN)) + ".\n",
        _ACCELERATE,
        _table(("variable", "why"), ((f"`{name}`", text) for name, text in variables.NOTES_BY_KEY.items())),
        "\nRefused: " + ", ".join(f"`{name}` ({text})" for name, text in variables.REFUSED.items()) + ".\n",
        "\n### Refused, or without effect\n\n",
        _table(
            ("`distributed_type`", "why it is refused"),
            ((f"`{key}`", text) for key, text in accelerate_file.REFUSED.items()),
        ),
        (
            "\n`mixed_precision: fp8` is computed in bf16, with a warning. Refused as well: MS-AMP, expert"
            " parallelism and CPU-offloaded optimizers of Megatron, `sp_size` together with `cp_size`, and"
            " keys that\nAccelerate does not know (it refuses them too). These keys have no effect and give a"
            " note:\n\n"
        ),
        _table(
            ("key", "instead"),
            ((f"`{key}`", text) for key, (text, _) in accelerate_file.NOTES_BY_KEY.items()),
        ),
    ]
    return "".join(parts)


_FSDP = """
## FSDP

`auto_wrap_policy` (also `wrap_policy`) determines which modules are wrapped. `min_num_params` with a
class-based policy, or classes with `SIZE_BASED_WRAP`, have no effect, with a note. Without a policy
`min_num_params` means by size and `transformer_layer_cls_to_wrap` by class; both together are refused.

FSDP2 (torch's `fully_shard`) runs whichever version is requested; the plan notes if that was version 1.
`no_shard` and the hybrid shardings keep their meaning through a mesh with replicas. If `fsdp` and
`fsdp_config` differ, the sharding of `fsdp_config` applies, as in Transformers, with a note. `fsdp_config`
without `fsdp` (or `distributed_strategy: fsdp`) shards nothing, as in Transformers. `offload` works with
`full_shard` and `shard_grad_op` only. `ignored_modules` is refused. The `xla` keys are known: `paceline plan`
says what they would do, and a start is refused. Keys, each with or without the prefix `fsdp_`:
"""
_ACCELERATE = """
## Accelerate

`num_processes`, `num_machines`, `machine_rank`, `main_process_ip` and `main_process_port` become keys of
`launch`; `mixed_precision`, `use_cpu`, `gradient_accumulation_steps` and `dynamo_config` keys of `training`.
The `deepspeed_config` block becomes the JSON that Accelerate makes of it, or the file that it names;
`fsdp_config` without `fsdp_version` is version 1; `parallelism_config` becomes `training.parallelism`
(`sp_size`: Ulysses, `cp_size`: all-gather); Megatron's parallel degrees become those of the native mesh. As
in Accelerate, blocks of another `distributed_type` are ignored, and without `mixed_precision` the run
computes in float32.

### accelerate launch

`accelerate launch --use_fsdp --mixed_precision bf16 main.py …` passes its options to the program as variables
(`ACCELERATE_*`, `FSDP_*`, `PARALLELISM_CONFIG_*`, `MEGATRON_LM_*`). They are read like the file above, and
listed in `paceline config show` and in the log. Options that the user gave rank above the YAML and below
`PACELINE_…` variables and the command line; the launcher's defaults (`--mixed_precision no`, the defaults of
FSDP) rank below the YAML. Every conflict is reported with both places: `launch.option_wins`,
`launch.option_overridden`. `auto` in the YAML is no conflict. FSDP and DeepSpeed options are merged into the
YAML's own block, key by key; `--deepspeed_config_file` replaces the YAML's file.

accelerate launch does not pass on `--gradient_accumulation_steps` and `--gradient_clipping` (without
DeepSpeed) or the NVMe paths; they are read from its command line. It ignores `--zero_stage` without
`--use_deepspeed`, `--fsdp_…` without `--use_fsdp` and so on: a warning lists them. `--cpu --num_processes 2`
starts one process, with a warning; `--multi_gpu` starts two, on CPUs as well. These variables have no effect:

"""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(reference())
