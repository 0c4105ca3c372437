"""Named differences made to act: each a file in which the key that differs is set, and what we have instead.

Of a case with ``ours`` the program trains both: it is equal to us without the key (``recorded/losses.json``).
Of one without, we train the import.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import of_axolotl
import of_llamafactory
import of_swift
import of_trl
from published import TOOL, as_published, registered
from small import ROWS, conversations, template_tokens, turn, write_lines, write_model

from paceline.config.import_export.argument_tables import table
from paceline.core.json_types import as_object

Keys = Mapping[str, object]
#: a model of which an import sees no file
UNSEEN = "nobody/model"


@dataclass(frozen=True)
class Apart:
    """A difference: the program's own ``base`` with the keys ``theirs``, and with ``ours`` in their place.

    ``key``: whose difference it is. ``beside``: keys that the import alone is given (None: it is not given
    them). ``rows``: writes other rows. FOLDER in a text is the case's folder. ``same``: that both are equal
    is what is to be seen; ``within``: how near, where the import names no difference. ``local``: names in the
    YAML that the import wrote → what stands for them here.
    """

    program: str
    key: str
    base: Any
    theirs: Keys
    ours: Keys | None = None
    beside: Keys = field(default_factory=dict)
    rows: Callable[[Path], None] = lambda folder: None
    same: bool = False
    within: float = 1e-4
    local: Keys = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """A difference of rows: how many of the program's have other tokens, or other ones with loss, here.

    ``part``: a pattern of the sentence, where the key has several. ``where``: which of the rows differ.
    """

    program: str
    key: str
    base: Any
    theirs: Keys
    beside: Keys = field(default_factory=dict)
    rows: Callable[[Path], None] = lambda folder: None
    part: str = ""
    where: str = ""
    local: Keys = field(default_factory=dict)


def changed(program: str, given: Any, keys: Keys, folder: Path) -> Any:
    """Return what the program is given, with other keys; None takes one out."""
    keys = json.loads(json.dumps(dict(keys)).replace("FOLDER", str(folder)))
    if program == "trl":
        return given[0], changed("", given[1], keys, folder)
    if program == "swift":
        words = {key: values if isinstance(values, list) else [str(values)] for key, values in keys.items()}
        made = {**of_swift.keys_of(given[1:]), **words}
        kept = {key: values for key, values in made.items() if keys.get(key, "") is not None}
        return [given[0], *(word for key, values in kept.items() for word in (f"--{key}", *values))]
    return {key: value for key, value in {**given, **keys}.items() if value is not None}


def _doubled(folder: Path) -> None:
    file = folder / "rows.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([*lines, *lines[:2], *lines[:2]]) + "\n", encoding="utf-8")


def _rounded(folder: Path) -> None:
    """Write the model a second time, its weights rounded to bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(folder / "model").save_pretrained(folder / "rounded")
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    model.save_pretrained(folder / "rounded")


def _stored_in_bfloat16(folder: Path) -> None:
    """Write the model's weights anew, in bfloat16."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(folder / "model").bfloat16().save_pretrained(folder / "model")


def _experts(folder: Path) -> None:
    """Write a mixture of experts in the model's place."""
    import torch
    from transformers import AutoConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

    dense = AutoConfig.from_pretrained(folder / "model")
    torch.manual_seed(0)
    made = Qwen3MoeConfig(
        vocab_size=dense.vocab_size,
        hidden_size=dense.hidden_size,
        intermediate_size=dense.intermediate_size,
        moe_intermediate_size=dense.intermediate_size,
        num_hidden_layers=2,
        num_attention_heads=dense.num_attention_heads,
        num_key_value_heads=dense.num_key_value_heads,
        head_dim=dense.hidden_size // dense.num_attention_heads,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=512,
        eos_token_id=dense.eos_token_id,
        initializer_range=0.2,
    )
    Qwen3MoeForCausalLM(made).save_pretrained(folder / "model")


def _long(folder: Path) -> None:
    """Make one row in four longer than our default limit, and the model's positions with it."""
    from transformers import AutoTokenizer

    config, tokenizer = folder / "model/config.json", AutoTokenizer.from_pretrained(folder / "model")
    config.write_text(config.read_text(encoding="utf-8").replace("512", "8192"), encoding="utf-8")
    rows = conversations()
    for row in rows[::4]:
        answer = row["messages"][1]
        times = 4096 // len(tokenizer.encode(answer["content"]))
        answer["content"] = " ".join([answer["content"]] * times)
    write_lines(folder / "sft.jsonl", rows)


def _several_answers(folder: Path) -> None:
    """Join each conversation and the next, and write the templates' marks into the tokenizer."""
    write_model(folder, template_tokens("axolotl_templates"))
    rows = conversations()
    joined = [
        one["messages"] + other["messages"] for one, other in zip(rows, rows[1:] + rows[:1], strict=True)
    ]
    write_lines(folder / "rows.jsonl", [{"messages": messages} for messages in joined])


def _many_documents(folder: Path) -> None:
    rows = of_swift.rows("reranker")
    for row in rows:
        row["negative_messages"] = [[turn("assistant", f"{n} is wrong")] for n in range(10)]
    write_lines(folder / "reranker.jsonl", rows)


#: The eight-bit optimizers that Transformers' DeepSpeed takes and ours does not
_EIGHT_BITS = ("adamw_torch_8bit", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_4bit")
_LORA = {"adapter": "lora", "lora_r": 8, "lora_alpha": 16}
_FEW = {"micro_batch_size": 2, "gradient_accumulation_steps": 1}
_SFT, _TRL, _SWIFT = of_axolotl.SMALL["sft"], of_trl.SMALL["sft"], of_swift.SMALL["sft full"]
_FULL = of_llamafactory.SMALL["sft"]
_SHAPED = {"lr_scheduler_type": "cosine", "warmup_steps": 2}


def _of_axolotl() -> Iterator[Apart]:
    name = "axolotl"
    yield Apart(name, "load_in_8bit", {**_SFT, **_LORA}, {"load_in_8bit": True}, {})
    yield Apart(name, "load_in_4bit", {**_SFT, **_LORA}, {"load_in_4bit": True, "adapter": "qlora"}, {})
    yield Apart(
        name,
        "lr_quadratic_warmup",
        _SFT,
        {"lr_quadratic_warmup": True, "warmup_steps": 3},
        {"warmup_steps": 3},
    )
    for optimizer in _EIGHT_BITS:
        beside = {"deepspeed": "deepspeed_configs/zero2.json"}
        yield Apart(name, "optimizer", _SFT, {"optimizer": optimizer}, {"optimizer": "adamw_torch"}, beside)
    yield Apart(name, "min_sample_len", _SFT, {"min_sample_len": 24}, {})
    yield Apart(
        name, "dataset_exact_deduplication", _SFT, {"dataset_exact_deduplication": True}, {}, rows=_doubled
    )
    yield Apart(
        name, "unfrozen_parameters", {**_SFT, **_LORA}, {"unfrozen_parameters": ["model.norm.weight$"]}
    )
    yield Apart(name, "use_eaft", _SFT, {"use_eaft": True, "eaft_alpha": 1.0, "eaft_k": 20})
    weights = {"bf16": "auto", "deepspeed": "deepspeed_configs/zero2.json"}
    yield Apart(name, "bf16", _SFT, {"base_model": "FOLDER/rounded"}, {}, weights, _rounded)
    yield Apart(name, "group_by_length", _SFT, {**_FEW, "group_by_length": True}, _FEW)
    packed = {**_FEW, "micro_batch_size": 1, "sample_packing": True, "sequence_len": 96}
    for key in ("sample_packing_sequentially", "curriculum_sampling"):
        yield Apart(name, key, _SFT, {**packed, key: True}, packed)
    some: Keys = {
        "lora_model_dir": None,
        "lora_target_linear": None,
        "lora_target_modules": ["q_proj", "v_proj"],
    }
    packed_experts = {**some, "quantize_moe_experts": True}
    four = {"adapter": "qlora", "load_in_4bit": True}
    yield Apart(name, "quantize_moe_experts", {**_SFT, **_LORA}, packed_experts, some, four, _experts)
    router = {"output_router_logits": True}
    for key in ("model_config", "model_config.output_router_logits"):
        yield Apart(
            name,
            key,
            _SFT,
            {"overrides_of_model_config": {**router, "router_aux_loss_coef": 0.02}},
            {"overrides_of_model_config": router},
            {"overrides_of_model_config": None, "model_config": router},
            _experts,
        )
    yield Apart(name, "streaming", _SFT, {**_FEW, "streaming": True}, _FEW)


def _of_others() -> Iterator[Apart]:
    remote = {"model_name_or_path": UNSEEN, "model_revision": "v1"}
    yield Apart("trl", "trust_remote_code", _TRL, {"trust_remote_code": True}, {}, remote, same=True)
    name = "swift"
    yield Apart(
        name,
        "torch_dtype",
        _SWIFT,
        {"torch_dtype": "float32"},
        {"torch_dtype": "bfloat16"},
        {"torch_dtype": None, "model": UNSEEN},
    )
    yield Apart(name, "optimizer", _SWIFT, {"optimizer": "muon", "weight_decay": "0.1"})
    for share in ("0.5", "1"):
        yield Apart(name, "lmbda", of_swift.SMALL["gkd"], {"lmbda": share, "seq_kd": "false"})
    few = {"per_device_train_batch_size": "2", "gradient_accumulation_steps": "1"}
    yield Apart(name, "streaming", _SWIFT, {**few, "streaming": "true"}, few)
    for case in ("reranker", "reranker listwise"):
        yield Apart(name, "loss_type", of_swift.SMALL[case], {}, rows=_many_documents)
    published = {"dpo": "hjh0119/shareAI-Llama3-DPO-zh-en-emoji", "reranker": "MTEB/scidocs-reranking"}
    for case, data in published.items():
        theirs, of_ours, here = registered(data)
        written = as_published(data)
        yield Apart(name, "dataset", of_swift.SMALL[case], theirs, None, of_ours, written, local=here)


def _of_llamafactory() -> Iterator[Apart]:
    name, lora = "llamafactory", {**_FULL, "finetuning_type": "lora"}
    yield Apart(name, "pure_bf16", _FULL, {"pure_bf16": True}, {"bf16": True})
    one = {"per_device_train_batch_size": ROWS, "gradient_accumulation_steps": 1}
    galore = {"use_galore": True, "galore_layerwise": True, **_SHAPED, **one, "optim": "adamw_torch"}
    yield Apart(name, "galore_layerwise", _FULL, galore)
    apollo = {"use_apollo": True, "apollo_layerwise": True, **_SHAPED, **one, "optim": "adamw_torch"}
    yield Apart(name, "apollo_layerwise", _FULL, apollo)
    yield Apart(name, "use_apollo", _FULL, {**apollo, "apollo_layerwise": False})
    approximate = {"pissa_init": True, "adapter_name_or_path": None, "lora_dropout": 0.0}
    yield Apart(name, "pissa_init", lora, approximate)
    yield Apart(name, "use_eaft_loss", _FULL, {"use_eaft_loss": True})
    yield Apart(name, "use_asft_loss", _FULL, {"use_asft_loss": True, "asft_alpha": 0.05})
    yield Apart(name, "stage", of_llamafactory.SMALL["kto"], {})
    yield Apart(name, "stage", of_llamafactory.SMALL["pt, not packed"], {"template": "default"})
    yield Apart(name, "train_on_prompt", of_llamafactory.SMALL["sft on the prompt, too"], {})
    yield Apart(name, "train_size", _FULL, {"train_size": 0.8}, {}, same=True)
    stored = {"bf16": False, "fp16": False, "as_on_a_device": True}
    yield Apart(name, "bf16", lora, stored, None, {"as_on_a_device": None}, _stored_in_bfloat16)
    first: Keys = {"model": "base", "train_dataset": "rows"}
    muon = {"optim_config": {"name": "muon", "wd": 0.1}}
    for key in ("optim_config", "optim_config.wd"):
        yield Apart(name, key, first, muon)
    turbo = {"dist_config": {"name": "fsdpturbo"}, "bf16": True}
    alone = {"distributed_strategy: fsdp": "distributed_strategy: single"}
    rounded = 2**-8 * 4  # of losses in bfloat16
    yield Apart(name, "bf16", first, turbo, rows=_experts, within=rounded, local=alone)


def of_program(program: str) -> list[Apart]:
    """Return a program's cases."""
    made = {"axolotl": _of_axolotl, "llamafactory": _of_llamafactory}.get(program, _of_others)
    return [one for one in made() if one.program == program]


def _rows_of_axolotl() -> Iterator[Rows]:
    for name, formats in as_object(table("axolotl_templates")["templates"]).items():
        end, where = as_object(formats)["end"], " of conversations without tools"
        for ends in ({}, {"eot_tokens": [end]}) if end != "eos_token" else ({},):
            written = {"chat_template": name, "sequence_len": 4096, **ends}
            yield Rows("axolotl", "chat_template", _SFT, written, rows=_several_answers, where=where)


def _rows_of_trl() -> Iterator[Rows]:
    where = ", in a first token more, where the chat template writes none"
    yield Rows("trl", "add_bos", _TRL, {"add_bos": True, "assistant_only_loss": True}, where=where)

    unseen, here = {"dataset_name": UNSEEN}, {UNSEEN: "FOLDER/apart.jsonl"}
    apart: Keys = {"dataset_name": "FOLDER/apart.jsonl"}
    yield Rows(
        "trl", "completion_only_loss", _TRL, apart, unseen, _completions, "", ": half of several turns", here
    )


def _completions(folder: Path) -> None:
    """Write conversations with prompt and completion apart; every second completion has several turns."""
    talks = [row["messages"] for row in conversations()]
    more = [[*talks[n - 1], talk[1]] for n, talk in enumerate(talks)]
    rows = [
        {"prompt": talk[:1], "completion": [talk[1], *more[n][: 2 * (n % 2)]]} for n, talk in enumerate(talks)
    ]
    write_lines(folder / "apart.jsonl", rows)


def _rows_of_swift() -> Iterator[Rows]:
    drawn = {"dataset": f"FOLDER/sft.jsonl#{ROWS // 2}"}
    where = f", drawn of {ROWS}"
    yield Rows("swift", "dataset", _SWIFT, drawn, part="^#", where=where)
    unseen = {"model": UNSEEN}
    where = ": those of more tokens than data.max_length"
    here = {UNSEEN: "FOLDER/model"}
    yield Rows("swift", "max_length", _SWIFT, {"max_length": None}, unseen, _long, where=where, local=here)
    for key, texts in (("model_name", ["小黄", "Xiao Huang"]), ("model_author", ["魔搭", "ModelScope"])):
        theirs, of_ours, here = registered("swift/self-cognition")
        both: Keys = {"model_name": "A", "model_author": "B", key: texts}
        written, where = as_published("swift/self-cognition"), ": those in Chinese"
        yield Rows("swift", key, _SWIFT, theirs | both, of_ours | both, written, "", where, here)
    theirs, of_ours, here = registered("swift/self-cognition")
    thinks: Keys = {"template": "qwen3"}
    part, beside = "empty thought", of_ours | {"dataset": "swift/self-cognition:empty_think"}
    written = as_published("swift/self-cognition", "empty_think")
    yield Rows("swift", "dataset", _SWIFT, theirs | thinks, beside, written, part, "", here)
    tools: Keys = {"agent_template": "react_en", "max_length": "1024"}
    yield Rows("swift", "agent_template", _SWIFT, tools, rows=_some_with_tools, where=": those with tools")
    yield from _rows_of_a_head()
    for name, where in (
        ("AI-ModelScope/alpaca-gpt4-data-zh", "those whose input begins with 输入："),
        ("AI-ModelScope/LongAlpaca-12k", "those whose answer begins with Answer:"),
        ("AI-ModelScope/function-calling-chatml", "those with tools"),
    ):
        theirs, of_ours, here = registered(name)
        part, where = "^ms-swift prepares", f": {where}"
        theirs = {**theirs, **tools}
        yield Rows("swift", "dataset", _SWIFT, theirs, of_ours, as_published(name), part, where, here)


def _rows_of_a_head() -> Iterator[Rows]:
    """Yield the cases of ``task_type: seq_cls``: of texts, and of turns."""
    base, key, turns = of_swift.SMALL["seq_cls"], "use_chat_template", ": turns of a user"
    yield Rows("swift", key, base, {key: "false"}, where=turns)
    columns = {"columns": '{"sentence": "query"}'}
    yield Rows("swift", key, base, columns, {"columns": None}, _texts, where=": texts")
    unseen, here = {"model": UNSEEN, "model_type": None, "template": None}, {UNSEEN: "FOLDER/model"}
    yield Rows("swift", "template", base, {}, unseen, where=turns, local=here)


def _texts(folder: Path) -> None:
    rows = [
        {"sentence": row["messages"][0]["content"], "label": row["label"]} for row in of_swift.rows("seq_cls")
    ]
    write_lines(folder / "seq_cls.jsonl", rows)


def _some_with_tools(folder: Path) -> None:
    rows = conversations()
    for row in rows[::2]:
        row["tools"] = json.dumps([{"type": "function", "function": TOOL}])
    write_lines(folder / "sft.jsonl", rows)


def rows_of_program(program: str) -> list[Rows]:
    """Return a program's cases of rows."""
    made = {"axolotl": _rows_of_axolotl, "swift": _rows_of_swift, "trl": _rows_of_trl}
    return list(made[program]()) if program in made else []
