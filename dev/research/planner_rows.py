"""Published measurements (JSON lines) read as ``StepSpec``: which layout, precision and recomputation a
row tells of.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.plan.hardware.device_catalogue import Card, card_named
from paceline.plan.model.shape import ModelShape
from paceline.plan.workload.step_spec import AdapterSize, Gathering, Machine, StepSpec, Storage

GIB = 2**30
# what these sources print as GB is torch's bytes / 1024³
UNITS = {"GB": GIB, "GiB": GIB, "G": GIB, "MiB": 2**20}
# Whose formulas differ, by the beginning of a row's group; all others are "default".
SYSTEMS = {
    "ultrascale": "nanotron",
    "nanotron": "nanotron",
    "llm-foundry": "foundry",
    "torchtitan": "titan",
    "torchao": "titan",
    "ibm": "fms",
    "fms": "fms",
    "megatron": "megatron",
    "nemo-2": "megatron",
    "nemo-l": "megatron",
    "korthikanti": "megatron",
    "internevo": "internevo",
    "litgpt": "litgpt",
    "qwen": "qwen",
    "ms-swift": "swift",
    "torchtune": "torchtune",
}
# Who publishes: the program or the company, so that none is judged by rows of its own.
PUBLISHERS = {
    "ultrascale": "Ultra-Scale Playbook",
    "llm-foundry": "llm-foundry",
    "torchtitan": "torchtitan",
    "torchao": "torchtitan",
    "torchtune": "torchtune",
    "ibm": "IBM",
    "fms": "IBM",
    "megatron": "NVIDIA",
    "nemo": "NVIDIA",
    "korthikanti": "NVIDIA",
    "internevo": "InternEvo",
    "litgpt": "litgpt",
    "qwen": "Qwen",
    "ms-swift": "ms-swift",
    "tinyllama": "TinyLlama",
}
# litgpt's full rows: what is printed is less than weights, gradients and Adam's moments together, so the
# moments cannot be in it.
STORAGE = {
    "nanotron": Storage(2, 4, 12),
    "foundry": Storage(4, 4, 8, anew=True),
    "titan": Storage(4, 4, 8, anew=True),
    "fms": Storage(4, 4, 8, anew=True),
    "megatron": Storage(2, 4, 12),
    "internevo": Storage(2, 2, 16),
    "litgpt": Storage(2, 2, 0, anew=True),
    "torchtune": Storage(2, 2, 4, anew=True),
    "qwen": Storage(2, 6, 16),
    "qwen-int4": Storage(2, 6, 16),
    "swift": Storage(2, 2, 12, anew=True),
    "default": Storage(2, 4, 12),
}
# Rows that vary in length: what the allocator keeps beside what moves, by the logarithm of the share of rows
# that reach the limit, and at most; chosen on half of a publisher's models, tried on the other half
OUTGROWN, MOST_OUTGROWN = 2.0, 1.0
# Programs whose layers are fused kernels by default (Transformer Engine; flash-attn's norms and rotary).
FUSED = ("megatron", "nemo", "internevo", "tinyllama")
# Whose loss is flash-attn's, on logits in 16 bits (llm-foundry's ``fused_crossentropy`` is its default)
HALF_LOSS = ("llm-foundry", "tinyllama")
# What a program prints as its memory: torch's tensors alone, what its allocator holds, or the whole device's
# use with the context. litgpt prints torch.cuda.max_memory_allocated() / 1e9, torchtune the active bytes'
# peak, torchtitan the reserved bytes' peak; the others do not say and are read as nvidia-smi's.
METRICS = {"litgpt": "tensors", "torchtune": "tensors", "torchtitan": "reserved", "torchao": "reserved"}
METRICS["ultrascale"] = "reserved"
PROMPT = 10  # tokens that LLaMA-Adapter puts before a layer's keys (litgpt's default)
DECIMAL = ("litgpt",)  # whose GB are 10^9 bytes
# Whose peak counts from the process's start, where every card held the whole model besides its part:
# Lightning's FSDP strategy reads a checkpoint into summoned full parameters (``_load_raw_module_state``).
FROM_START = ("litgpt",)
# Whose large models shard embedding and head apart: ``custom_sharded_layers`` in torchtune's configs
ENDS_APART = ("torchtune",)
# Sizes of models that rows name without them
VOCABULARIES = {"zephyr/mistral-7b": 32000}
# bytes a second a card to other nodes, where the source says so
LINKS = {"foundry": 25e9, "internevo": 6.25e9}


@dataclass(frozen=True)
class Row:
    """One measurement: the work, what was measured (bytes, tokens a second a rank; None where not), and
    whether it ran at all.
    """

    id: str
    group: str
    cell: str
    work: StepSpec
    ran: bool
    memory: float | None
    speed: float | None
    card: float
    tuning: str
    metric: str = "device"
    whole_at_start: bool = False

    @property
    def system(self) -> str:
        return self.work.system

    @property
    def layout(self) -> str:
        w = self.work
        return f"dp{w.dp} tp{w.tp} pp{w.pp} zero{w.zero} mb{w.micro_batch}"


def publisher(row: Row) -> str:
    """Who published a row."""
    return publisher_of(row.group)


def in_sweep(row: Row) -> bool:
    """Whether a row is of the one large sweep on one cluster."""
    return publisher(row) == PUBLISHERS["ultrascale"]


def unusable(path: Path) -> Counter[tuple[str, bool]]:
    """How many measured rows of each group say too little to be predicted, by whether they tell memory."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    lost = (row for row in lines if row["kind"] == "measured" and parse(row) is None)
    return Counter((row["group"], bool(row.get("peak_mem"))) for row in lost)


def publisher_of(group: str) -> str:
    """Who published the rows of ``group``: itself where none of its rows can be used."""
    return next((name for start, name in PUBLISHERS.items() if group.startswith(start)), group)


def usable(rows: Iterable[Row]) -> list[str]:
    """The rows' ids, runs of consecutive numbers joined: ``group-0001..0007``."""
    found: list[tuple[str, int, int]] = []
    for row in sorted(rows, key=lambda row: row.id):
        name, number = row.id.rsplit("-", 1)
        if found and found[-1][0] == name and found[-1][2] == int(number) - 1:
            found[-1] = name, found[-1][1], int(number)
        else:
            found.append((name, int(number), int(number)))
    return [f"{name}-{first:04}..{last:04}" for name, first, last in found]


def read(path: Path) -> list[Row]:
    """The rows that say enough to be predicted."""
    found = (
        parse(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
    )
    return [row for row in found if row is not None]


def parse(row: dict[str, Any]) -> Row | None:
    """One line; None when it lacks the model's sizes, the layout or a number to compare with, or is a
    claim without a source.
    """
    model = _model(row.get("model") or {})
    needed = (
        *(model.get(k) for k in ("n_layers", "params", "hidden", "n_heads", "ffn", "vocab")),
        row.get("seq_len"),
    )
    task = str(row.get("task", ""))
    if (
        not all(needed)
        or row.get("kind") not in ("measured", "measured_failure")
        or task[:3] in ("grp", "dap", "ppo", "mic")
    ):
        return None
    micro = int(row.get("micro_batch") or 1)
    measured = _memory(row), _speed(row)
    if row["kind"] == "measured" and measured == (None, None):
        return None
    group = str(row["group"])
    if "internally inconsistent" in str(row.get("notes")) or _contradicts(row):
        return None
    if group == "torchtune-flags" and "baseline" in str(row.get("flags")):
        return None  # padded, not packed: the real lengths are not printed
    system = next((name for start, name in SYSTEMS.items() if group.startswith(start)), "default")
    card = _card(str(row.get("gpu") or "A100"))
    if card is None:
        return None
    strategy = str(row.get("strategy") or "")
    tp, pp, cp = (
        int(row.get(k) or next(iter(re.findall(rf"{k}(\d+)", strategy)), 1)) for k in ("tp", "pp", "cp")
    )
    n = int(row.get("n_gpus") or 1)
    if "All runs are single-GPU" in str(row.get("notes")):
        n = 1  # its table repeats them for four cards
    found = re.search(r"sequence_parallel_size=(\d+)", str(row.get("flags")))
    cp = int(found.group(1)) if found else cp
    if n % (tp * pp * cp):
        return None
    dp = int(row.get("dp") or n // (tp * pp * cp))
    dp = n // (tp * pp * cp) if dp * tp * pp * cp != n else dp
    step = row.get("global_batch_seqs")
    accumulation = int(row.get("grad_accum") or (max(1, int(step) // (dp * micro)) if step else 1))
    if pp > 1 and micro > 1 and not row.get("grad_accum") and system in ("titan", "default"):
        # there the column is the batch a data-parallel rank, cut by the pipeline
        accumulation, micro = micro, 1
    tuning = str(row.get("tuning") or "full")
    if system == "qwen" and _kind(tuning) == "qlora":
        system = "qwen-int4"  # another script there: fp16, GPTQ
    adapter = _adapter(row, tuning)
    zero, shard = _zero(row, dp * cp, adapter)
    machine = card.machine(int(row.get("gpus_per_node") or 8))
    machine = Machine(**{**vars(machine), "outside": LINKS.get(system, machine.outside)})
    text = f"{row.get('precision')} {row.get('flags')}".lower()
    work = StepSpec(
        shape=_shape(model),
        machine=machine,
        seq_len=int(row["seq_len"]),
        micro_batch=micro,
        accumulation=accumulation,
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        zero=zero,
        shard=shard,
        storage=_storage(row, system, adapter, zero),
        recompute=_recompute(row, system),
        flash="no flash" not in str(row.get("notes")).lower() and row.get("attention") != "eager",
        fused_loss=system == "torchtune",
        compiled=bool(row.get("compile")),
        stages_a_rank=int(row.get("vpp") or 1) if pp > 1 else 1,
        adapter=adapter,
        offload="all" if "cpu offload" in text else "none",
        cut_by_cost=system == "nanotron",
        ring=True,
        low_precision="fp4" if "fp4" in text else "fp8" if "fp8" in text or "float8" in text else "",
        system=system,
        fused=group.startswith(FUSED),
        gathering=Gathering(ends_apart=group.startswith(ENDS_APART)),
        outgrown=_outgrown(row),
        half_loss="fp16 +" in text or group.startswith(HALF_LOSS),
    )
    return Row(
        id=str(row["id"]),
        group=group,
        cell=f"{model['name']} × {n}, {dp * micro * accumulation} rows a step",
        work=work,
        ran=row["kind"] == "measured",
        memory=measured[0],
        speed=measured[1],
        card=float(row.get("gpu_mem_gb") or card.memory_gb) * 1e9,
        tuning=_kind(tuning),
        whole_at_start=group.startswith(FROM_START) and zero == 3,
        metric=next((name for start, name in METRICS.items() if group.startswith(start)), "device"),
    )


def _contradicts(row: dict[str, Any]) -> bool:
    """Whether the rows of a step that are printed are not those of the printed layout."""
    layout = [row.get(key) for key in ("dp", "micro_batch", "grad_accum")]
    step = row.get("global_batch_seqs")
    return bool(step and all(layout)) and math.prod(map(int, layout)) != int(step)


def _model(printed: dict[str, Any]) -> dict[str, Any]:
    """A row's model, with the sizes that follow from its name or from its other sizes."""
    model = dict(printed)
    model["vocab"] = model.get("vocab") or VOCABULARIES.get(str(model.get("name")))
    sizes = [model.get(k) for k in ("n_layers", "hidden", "n_heads", "ffn", "vocab")]
    if model.get("params") is None and all(sizes):
        h, f, heads = int(model["hidden"]), int(model["ffn"]), int(model["n_heads"])
        head = int(model.get("head_dim") or h // heads)
        kv = int(model.get("n_kv_heads") or heads) * head
        gated = model.get("mlp") in ("swiglu", "geglu", None)
        layer = 2 * h * heads * head + 2 * h * kv + (3 if gated else 2) * h * f + 2 * h
        ends = (1 if model["tied_embeddings"] else 2) * model["vocab"] * h
        model["params"] = int(model["n_layers"]) * layer + ends
    return model


def _outgrown(row: dict[str, Any]) -> float:
    """What the caching allocator keeps in blocks that other lengths do not fit, as a share of what moves."""
    said = re.search(r"(\d+)\+-(\d+) tokens/sample truncated", str(row.get("notes")))
    if said is None:
        return 0.0
    mean, deviation = map(float, said.groups())
    variance = math.log(1 + (deviation / mean) ** 2)
    z = (math.log(row["seq_len"] / mean) + variance / 2) / math.sqrt(variance)
    reach = 0.5 * math.erfc(z / math.sqrt(2))
    return min(MOST_OUTGROWN, OUTGROWN * -math.log(reach))


def _storage(row: dict[str, Any], system: str, adapter: AdapterSize | None, zero: int) -> Storage:
    """The bytes a parameter that the program keeps, less what its flags take away."""
    if adapter:
        return Storage(2, 2, 8, anew=True)
    storage, flags = STORAGE[system], str(row.get("flags")).lower()
    if zero == 3 and "deepspeed" in str(row.get("strategy")).lower():
        storage = replace(storage, gradient=2.0)  # its stage 3 has no averaged gradients beside its part
    if "8bit adamw" in flags:
        storage = replace(storage, optimizer=storage.optimizer / 2)  # from bfloat16 moments
    if "optim in bwd" in flags or "8bit adamw" in flags:  # its flags are cumulative
        storage = replace(storage, gradient=0.0)
    return storage


def _speed(row: dict[str, Any]) -> float | None:
    """Tokens a second a card, as printed, or from the seconds of a step of so many full rows."""
    printed, seconds, sequences = (
        row.get(k) for k in ("tokens_per_s_per_gpu", "step_time_s", "global_batch_seqs")
    )
    if printed or not (seconds and sequences and row.get("n_gpus")) or row.get("task") != "pretrain":
        return printed
    return float(sequences) * int(row["seq_len"]) / float(seconds) / int(row["n_gpus"])


def _memory(row: dict[str, Any]) -> float | None:
    peak = row.get("peak_mem")
    if not peak or isinstance(peak["value"], list):
        return None
    decimal = peak["unit"] == "GB" and str(row["group"]).startswith(DECIMAL)
    value = float(peak["value"]) * (1e9 if decimal else UNITS[peak["unit"]])
    return value / int(row.get("n_gpus") or 1) if peak.get("scope") == "sum_over_gpus" else value


def _card(name: str) -> Card | None:
    """By name or alias, else by the name's beginning (sources write "A100 (40GB)", "16GB GPU", …)."""
    for spelling in (name, name.split("(")[0], name.split("/")[0], name.split("-")[0]):
        try:
            return card_named(spelling)
        except ConfigError:
            continue
    return None


def _shape(model: dict[str, Any]) -> ModelShape:
    head = int(model.get("head_dim") or model["hidden"] // model["n_heads"])
    hidden, layers, vocab = int(model["hidden"]), int(model["n_layers"]), int(model["vocab"])
    tied = bool(model["tied_embeddings"])
    outside = vocab * hidden * (1 if tied else 2)
    params = int(model["params"])
    return ModelShape(
        model_type="llama" if model.get("mlp") in ("swiglu", "geglu", None) else "gpt_neox",
        hidden_size=hidden,
        layers=layers,
        heads=int(model["n_heads"]),
        kv_heads=int(model.get("n_kv_heads") or model["n_heads"]),
        head_dim=head,
        intermediate=int(model["ffn"]),
        vocab=vocab,
        tied=tied,
        max_position_embeddings=0,
        num_parameters=params,
        matmul_parameters=params - outside + vocab * hidden,
    )


def _recompute(row: dict[str, Any], system: str) -> str:
    said = str(row.get("activation_ckpt") or "").lower()
    if said.startswith("none"):
        return "none"
    if "full" in said:
        return "full"
    if "selective-attn" in said:
        return "none"
    if "selective" in said:
        return "selective"
    return "full" if system in ("qwen", "qwen-int4", "swift", "torchtune") else "none"


def _zero(row: dict[str, Any], ranks: int, adapter: AdapterSize | None) -> tuple[int, int]:
    sharding, strategy = str(row.get("sharding") or "").upper(), str(row.get("strategy") or "").lower()
    stage = row.get("zero")
    if stage is None:
        stage = (
            3
            if "fsdp" in strategy or "zero3" in strategy
            else 1
            if "zero1" in strategy or "optimizer" in sharding.lower()
            else 0
        )
        if "zero-3 for full" in strategy:
            stage = 2 if adapter else 3
    hybrid = re.search(r"zero1[_-]?in[_-]?(\d+)|hsdp(\d+)", strategy)
    return int(stage), int(next(filter(None, hybrid.groups()))) if hybrid else ranks


def _kind(tuning: str) -> str:
    return "qlora" if "qlora" in tuning else "lora" if "lora" in tuning or "adapter" in tuning else "full"


def _adapter(row: dict[str, Any], tuning: str) -> AdapterSize | None:
    if _kind(tuning) == "full":
        return None
    model, text = row["model"], f"{row.get('flags')} {tuning} {row.get('precision')}"
    printed = re.search(r"trainable ([\d,]+)", text)
    rank = int(
        next(iter(re.findall(r"(?:lora_rank=|r)(\d+)\b", text)), 64 if row["group"].startswith("qwen") else 8)
    )
    h, f, layers = model["hidden"], model["ffn"], model["n_layers"]
    broad = row["group"].startswith("qwen") or "all" in text
    count = layers * rank * ((8 * h + 3 * (h + f)) if broad else 4 * h)
    base = 2.0
    if "qlora" in tuning or "nf4" in text or "int4" in text:
        base = 1.07 if "int8" in text else 0.516 if "dq" in text else 0.5625
    full = 2 * model["vocab"] * h if "emb/head" in tuning else 0
    # peft's prepare_model_for_kbit_training
    ends = 4.0 if base != 2.0 and row["group"].startswith(("qwen", "ms-swift")) else 2.0
    trained = int(printed.group(1).replace(",", "")) if printed else count
    # prompts alone, or (LLaMA-Adapter v2) a learnt scale and bias of each output, too
    scaled = tuning == "adapter" and trained > layers * (PROMPT * h + model["n_heads"])
    return AdapterSize(trained, base, full, ends, rescaled=1.0 if scaled else 0.0)
