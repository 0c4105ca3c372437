"""``make gpu-check``'s table: what is trained on the device and held to the CPU's losses. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GLOBAL_BATCH, STEPS, SAVED = 8, 4, 2
MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
#: absolute difference of a step's loss (about 5.8 at the start) between a device and the CPU, same precision
TOLERANCE = {"no": 1e-4, "bf16": 5e-3, "fp16": 5e-3}
#: absolute, of an export's logits: AdamW's first steps have the size of lr, whatever the gradient's
LOGITS = {"no": 1e-2, "bf16": 1e-1, "fp16": 1e-1}
CASE_SECONDS = 240


@dataclass(frozen=True)
class DeviceCase:
    """One training: once on the CPU in one process, once on ``processes`` devices.

    training      keys under ``training``; sections: other sections of the YAML
    rows          which of the written data sets it learns from
    resume        go on from the middle, and say whether that was bit for bit
    export        a Hugging Face folder, its logits beside the reference's
    may_refuse    a refusal before the start is an answer too (a package or a compiler may be missing)
    device_only   keys under ``training`` that a CPU refuses: its reference does without them
    tolerance     of a step's loss, where the precision's own (TOLERANCE) does not say it
    """

    name: str
    group: str
    training: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "bf16"
    rows: str = "documents"
    processes: int = 1
    data_parallel: int = 1
    resume: bool = False
    export: bool = False
    may_refuse: bool = False
    device_only: tuple[str, ...] = ()
    tolerance: float | None = None

    @property
    def close(self) -> float:
        """How near the losses have to be."""
        return TOLERANCE[self.precision] if self.tolerance is None else self.tolerance

    @property
    def micro(self) -> int:
        """Rows a micro-batch: more than one process take them one by one."""
        return 4 if self.processes == 1 else 1

    @property
    def reference(self) -> DeviceCase:
        """The same in one process: what the CPU trains."""
        dropped = (*self.device_only, *PLACEMENT)
        if self.processes == 1 and not any(key in self.training for key in dropped):
            return self
        kept = {k: v for k, v in self.training.items() if k not in dropped}
        return DeviceCase(
            f"reference of {self.name}",
            self.group,
            kept,
            self.model,
            self.sections,
            self.precision,
            self.rows,
        )

    def config(
        self, folders: Mapping[str, str], output_dir: str, device: str, **training: Any
    ) -> dict[str, Any]:
        """The YAML, as JSON. ``folders``: ``tokenizer``, ``cache`` and the data by name."""
        return {
            "model": {"config": {**MODEL, **self.model}, "tokenizer": folders["tokenizer"]},
            "data": {"train": folders[self.rows], "max_length": 96, "cache_dir": folders["cache"]},
            **self.sections,
            "training": {
                "distributed_strategy": "single",
                "mixed_precision": self.precision,
                "max_steps": STEPS,
                "per_device_train_batch_size": self.micro,
                "gradient_accumulation_steps": GLOBAL_BATCH // (self.micro * self.data_parallel),
                "learning_rate": 1e-3,
                "logging_steps": 1,
                "save_strategy": "steps",
                "save_steps": SAVED,
                "report_to": "none",
                "seed": 7,
                "output_dir": output_dir,
                **({"use_cpu": True} if device == "cpu" else {}),
                **self.training,
                **training,
            },
        }


#: what says how processes share the work; one process has none of it
PLACEMENT = ("distributed_strategy", "parallelism", "fsdp", "deepspeed")
LORA = {"lora": {"r": 4, "alpha": 8}}
QLORA = {"lora": {"r": 4, "alpha": 8, "quantization_bit": 4}}
ROLLOUT = {
    "rewards": [{"name": "regex", "options": {"pattern": "[a-m]"}}],
    "num_generations": 4,
    "max_completion_length": 8,
}
GRPO = {
    "algorithm": "grpo",
    "adam_epsilon": 1e-5,
    "rollout": ROLLOUT,
    "grpo": {"beta": 0.05, "num_iterations": 2},
}
PPO = {
    "algorithm": "ppo",
    "adam_epsilon": 1e-5,
    "rollout": {**ROLLOUT, "num_generations": 1},
    "ppo": {"num_ppo_epochs": 2},
}
SOFTCAP = {"model_type": "gemma2", "head_dim": 16, "sliding_window": 16, "attn_logit_softcapping": 3.0}
WINDOW = {"model_type": "mistral", "sliding_window": 16}
SINKS = {
    "model_type": "gpt_oss",
    "head_dim": 16,
    "sliding_window": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}

#: torchao's fp8 products want sizes that 16 divides
WIDE = {"hidden_size": 128, "intermediate_size": 256}
FP8: dict[str, Any] = {"device_only": ("fp8",), "tolerance": 5e-2, "may_refuse": True}
PAGED: dict[str, Any] = {"device_only": ("optim",), "tolerance": 2e-2, "may_refuse": True}

# what is sampled is held in fp32: in bf16 another rounding draws another token
ONE = (
    DeviceCase("sft fp32", "one process", precision="no", resume=True, export=True),
    DeviceCase("sft bf16", "one process", resume=True, export=True),
    DeviceCase("sft fp16", "one process", precision="fp16", resume=True),
    DeviceCase("sft bf16, LoRA", "one process", sections=LORA, resume=True),
    DeviceCase("sft bf16, QLoRA", "one process", sections=QLORA, may_refuse=True),
    DeviceCase("sft bf16, 8-bit AdamW", "one process", {"optim": "adamw_bnb_8bit"}, may_refuse=True),
    DeviceCase("sft bf16, recompute", "one process", {"gradient_checkpointing": True}),
    DeviceCase("sft bf16, compile", "one process", {"torch_compile": True}, may_refuse=True),
    DeviceCase("sft bf16, fp8 products", "one process", {"fp8": True}, model=WIDE, **FP8),
    DeviceCase("sft bf16, ddp alone", "one process", {"distributed_strategy": "ddp"}, resume=True),
    DeviceCase("sft bf16, zero2 alone", "one process", {"distributed_strategy": "zero2"}, resume=True),
    DeviceCase("sft bf16, zero3 alone", "one process", {"distributed_strategy": "zero3"}, resume=True),
    DeviceCase("8-bit AdamW of torchao", "optimizers", {"optim": "adamw_torch_8bit"}, may_refuse=True),
    DeviceCase("4-bit AdamW of torchao", "optimizers", {"optim": "adamw_torch_4bit"}, may_refuse=True),
    DeviceCase("paged 8-bit AdamW", "optimizers", {"optim": "paged_adamw_8bit"}, **PAGED),
    DeviceCase("8-bit Lion", "optimizers", {"optim": "lion_8bit"}, may_refuse=True),
    DeviceCase("Muon", "optimizers", {"optim": "muon"}, resume=True),
    DeviceCase(
        "schedule-free AdamW",
        "optimizers",
        {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant"},
        may_refuse=True,
    ),
    DeviceCase("bf16 weights and moments alone", "optimizers", {"pure_bf16": True}),
    DeviceCase("bf16 masters, stochastic rounding", "optimizers", {"optim": "adamw_bf16_rounding"}),
    DeviceCase("reward", "algorithms", {"algorithm": "reward"}, rows="pairs"),
    DeviceCase("dpo", "algorithms", {"algorithm": "dpo"}, rows="pairs", resume=True),
    DeviceCase("grpo", "algorithms", GRPO, precision="no", resume=True),
    DeviceCase("ppo", "algorithms", PPO, precision="no"),
    DeviceCase("head size 80", "attention", model={"head_dim": 80}),
    DeviceCase("head size 256", "attention", model={"head_dim": 256}),
    DeviceCase("softcap and window (gemma2)", "attention", model=SOFTCAP),
    DeviceCase("window (mistral)", "attention", model=WINDOW),
    DeviceCase("softcap, no window (gemma2)", "attention", model={**SOFTCAP, "sliding_window": 4096}),
    DeviceCase("sinks and window (gpt_oss)", "attention", model=SINKS),
    DeviceCase("sinks in fp32 (gpt_oss)", "attention", model=SINKS, precision="no"),
    DeviceCase("odd heads (llama)", "attention", model={"head_dim": 20}),
)


def _two(
    name: str, data_parallel: int, strategy: str, parallelism: Any = None, **training: Any
) -> DeviceCase:
    sizes = {"parallelism": parallelism} if parallelism else {}
    placed = {"distributed_strategy": strategy, **sizes, **training}
    resume = name in ("ddp", "fsdp", "zero3")
    return DeviceCase(name, "two processes", placed, processes=2, data_parallel=data_parallel, resume=resume)


TWO = (
    _two("ddp", 2, "ddp"),
    _two("fsdp", 2, "fsdp"),
    _two("fsdp, CPU offload", 2, "fsdp", fsdp="full_shard offload"),
    _two("hybrid shard", 2, "fsdp", {"dp_replicate_size": 2}),
    _two("tp", 1, "fsdp", {"tp_size": 2}),
    _two("tp, sequence parallel", 1, "fsdp", {"tp_size": 2, "sequence_parallel": True}),
    _two("cp ulysses", 1, "fsdp", {"cp_size": 2, "cp_method": "ulysses"}),
    _two("cp all-gather", 1, "fsdp", {"cp_size": 2, "cp_method": "allgather"}),
    _two("pipeline", 1, "pipeline", {"pp_size": 2}),
    _two("zero1", 2, "zero1"),
    _two("zero2", 2, "zero2"),
    _two("zero3", 2, "zero3"),
)
CASES = (*ONE, *TWO)
