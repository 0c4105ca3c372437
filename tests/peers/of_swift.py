"""ms-swift: a command's words on the small model, as both programs get them (the table of replacements)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from small import ROWS, TOKENS, conversations, pairs, turn, write_adapter, write_lines, write_model
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

Words = list[str]
#: Model, data, precision; three steps of all rows, so that their order does not count
REPLACED: Mapping[str, Words] = {
    "model_type": ["llama"],
    "template": ["chatml"],
    "torch_dtype": ["float32"],
    "fp16": ["false"],
    "bf16": ["false"],
    "per_device_train_batch_size": ["4"],
    "gradient_accumulation_steps": [str(ROWS // 4)],
    "max_steps": ["3"],
    "lora_dropout": ["0.0"],
    "split_dataset_ratio": ["0"],
    "save_strategy": ["no"],
    "logging_steps": ["1"],
    "report_to": ["none"],
    "dataset_num_proc": ["1"],
    "dataloader_num_workers": ["0"],
    "gradient_checkpointing": ["false"],
    "max_length": ["256"],
}
#: Of another model, machine or data set; kernels, evaluation and saves, which no loss knows
DROPPED = (
    "model", "dataset", "val_dataset", "cached_dataset", "cached_val_dataset", "deepspeed", "fsdp",
    "attn_impl", "use_liger_kernel", "num_train_epochs", "eval_steps", "save_steps", "eval_strategy",
    "save_total_limit", "quant_method", "quant_bits", "target_modules", "modules_to_save",
    "model_author", "model_name", "output_dir", "load_from_cache_file", "metric_for_best_model", "swanlab",
    "early_stop_interval", "sequence_parallel_size", "use_hf", "streaming", "adapters", "ref_adapters",
    "new_special_tokens", "push_to_hub", "hub_model_id", "hub_token", "lazy_tokenize", "max_epochs",
    "load_best_model_at_end", "predict_with_generate", "max_new_tokens", "save_only_model", "eval_metric",
    "ref_model", "optimizer", "model_kwargs", "init_weights", "columns", "per_device_eval_batch_size",
    "dataloader_drop_last", "packing", "padding_free", "experts_impl",
)  # fmt: skip
_QUANTISED = ("bnb_", "hqq_", "quant_", "swanlab_")
#: name → words, for what no example has
SMALL: Mapping[str, Words] = {
    "sft full": ["sft", "--tuner_type", "full", "--learning_rate", "1e-3"],
    "sft defaults": ["sft", "--tuner_type", "full"],
    "sft all": ["sft", "--tuner_type", "full", "--learning_rate", "1e-3", "--loss_scale", "all"],
    "sft last": ["sft", "--tuner_type", "full", "--learning_rate", "1e-3", "--loss_scale", "last_round"],
    "sft lora": ["sft", "--tuner_type", "lora", "--learning_rate", "1e-3", "--weight_decay", "0.0"],
    "sft dft": ["sft", "--tuner_type", "full", "--learning_rate", "1e-3", "--enable_dft_loss", "true"],
    "sft system": ["sft", "--tuner_type", "full", "--learning_rate", "1e-3", "--system", "Be brief."],
    "pt": ["pt", "--tuner_type", "full", "--learning_rate", "1e-3"],
    "dpo": ["rlhf", "--rlhf_type", "dpo", "--tuner_type", "full", "--learning_rate", "1e-3"],
    "dpo hinge": [
        *("rlhf", "--rlhf_type", "dpo", "--tuner_type", "full", "--learning_rate", "1e-3"),
        *("--loss_type", "hinge", "--beta", "0.3"),
    ],
    "orpo": ["rlhf", "--rlhf_type", "orpo", "--tuner_type", "full", "--learning_rate", "1e-3"],
    "cpo": ["rlhf", "--rlhf_type", "cpo", "--tuner_type", "full", "--learning_rate", "1e-3"],
    "simpo": ["rlhf", "--rlhf_type", "simpo", "--tuner_type", "full", "--learning_rate", "1e-3"],
    "orpo one micro-batch": [
        *("rlhf", "--rlhf_type", "orpo", "--tuner_type", "full", "--learning_rate", "1e-3"),
        *("--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "1"),
    ],
    "simpo one micro-batch": [
        *("rlhf", "--rlhf_type", "simpo", "--tuner_type", "full", "--learning_rate", "1e-3"),
        *("--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "1"),
    ],
    "kto one micro-batch": [
        *("rlhf", "--rlhf_type", "kto", "--tuner_type", "full", "--learning_rate", "1e-3"),
        *("--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "1"),
    ],
    "kto": ["rlhf", "--rlhf_type", "kto", "--tuner_type", "full", "--learning_rate", "1e-3"],
    "gkd": [
        *("rlhf", "--rlhf_type", "gkd", "--tuner_type", "full", "--learning_rate", "1e-3"),
        *("--lmbda", "0", "--max_completion_length", "16"),
    ],
    "seq_cls": [
        *("sft", "--task_type", "seq_cls", "--num_labels", "2", "--tuner_type", "full"),
        *("--learning_rate", "1e-3"),
    ],
    "rm": ["rlhf", "--rlhf_type", "rm", "--tuner_type", "full", "--learning_rate", "1e-3"],
    "embedding": [
        *("sft", "--task_type", "embedding", "--loss_type", "infonce", "--tuner_type", "full"),
        *("--template", "qwen3_emb", "--learning_rate", "1e-3"),
    ],
    "embedding micro-batches": [
        *("sft", "--task_type", "embedding", "--loss_type", "infonce", "--tuner_type", "full"),
        *("--template", "qwen3_emb", "--learning_rate", "1e-3"),
        *("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2"),
    ],
    "embedding chatml": [
        *("sft", "--task_type", "embedding", "--loss_type", "infonce", "--tuner_type", "full"),
        *("--template", "chatml", "--learning_rate", "1e-3"),
    ],
    "embedding dummy": [
        *("sft", "--task_type", "embedding", "--loss_type", "infonce", "--tuner_type", "full"),
        *("--template", "dummy", "--learning_rate", "1e-3"),
    ],
    "reranker": [
        *("sft", "--task_type", "reranker", "--loss_type", "pointwise_reranker", "--tuner_type", "full"),
        *("--template", "bert", "--learning_rate", "1e-3"),
    ],
    "reranker listwise": [
        *("sft", "--task_type", "reranker", "--loss_type", "listwise_reranker", "--tuner_type", "full"),
        *("--template", "bert", "--learning_rate", "1e-3"),
    ],
}


_RETRIEVAL = ("embedding", "reranker")
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
#: template → what the tokenizers of its models write around a text, and around two
_ENDS = {
    "qwen3_emb": ("$A <|endoftext|>", "$A $B <|endoftext|>"),
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"),
    "dummy": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"),
}


def write_ends(folder: Path, template: str, *, scores: bool = False) -> None:
    """Write the model anew, with a tokenizer that ends texts as those of the template's models.

    ``scores``: and with a head, which each program would draw otherwise.
    """
    from transformers import AutoModelForSequenceClassification

    tokens = ("<|endoftext|>", "[CLS]", "[SEP]")
    model = write_model(folder, (*TOKENS, *tokens))
    if scores:
        AutoModelForSequenceClassification.from_pretrained(model, num_labels=1).save_pretrained(model)
    if template not in _ENDS:
        return
    file, single_pair = folder / "model/tokenizer.json", _ENDS[template]
    tokenizer = Tokenizer.from_file(str(file))
    named = [(token, tokenizer.token_to_id(token)) for token in tokens if token in "".join(single_pair)]
    tokenizer.post_processor = TemplateProcessing(
        single=single_pair[0], pair=single_pair[1], special_tokens=named
    )
    tokenizer.save(str(file))
    config = folder / "model/tokenizer_config.json"
    written = json.loads(config.read_text(encoding="utf-8"))
    if "[CLS]" in single_pair[0]:  # as ModernBERT's
        written |= {"eos_token": None, "cls_token": "[CLS]", "sep_token": "[SEP]"}
        written |= {"pad_token": "<|endoftext|>"}
    config.write_text(json.dumps(written), encoding="utf-8")


def keys_of(words: Words) -> dict[str, Words]:
    """Return the values behind each ``--KEY``."""
    found: dict[str, Words] = {}
    for word in words:
        if word.startswith("--"):
            found[word[2:]] = []
        elif found:
            found[next(reversed(found))].append(word)
    return found


def small(folder: Path, words: Words) -> Words:
    """Return the words with the table applied; ``folder`` has the model. Writes rows and adapter."""
    verb, keys = words[0], keys_of(words[1:])
    given = {k: v for k, v in keys.items() if k not in DROPPED and not k.startswith(_QUANTISED)}
    task = next(iter(keys.get("task_type", [])), "")
    kept = {"template"} if task in _RETRIEVAL else set()
    if [keys[key] for key in _BATCH if key in keys] in ([["8"], ["1"]], [["4"], ["2"]]):
        kept |= {*_BATCH}
    given |= {key: value for key, value in REPLACED.items() if key not in kept or key not in keys}
    if task in _RETRIEVAL and not kept & {*_BATCH}:
        given |= dict(zip(_BATCH, ([str(ROWS)], ["1"]), strict=True))
    if task in _RETRIEVAL:
        write_ends(folder, given["template"][0], scores=task == "reranker")
    given |= {"model": [str(folder / "model")]}
    if keys.get("rlhf_type") == ["gkd"]:
        given |= {"teacher_model": [str(folder / "model")], "teacher_model_type": ["llama"]}
    kind = next(iter(keys.get("rlhf_type", [])), "") if verb == "rlhf" else task or verb
    given |= {"dataset": [str(write_lines(folder / f"{kind}.jsonl", rows(kind)))]}
    if given.get("tuner_type", ["lora"]) == ["lora"]:
        made = {"lora_rank": "".join(given.get("lora_rank", ["8"]))}
        made |= {"lora_alpha": "".join(given.get("lora_alpha", ["32"]))}
        given |= {"tuner_type": ["lora"], "adapters": [str(write_adapter(folder, made))]}
    return [verb, *(word for key, values in given.items() for word in (f"--{key}", *values))]


def rows(kind: str) -> list[dict[str, object]]:
    """Return rows for SFT (``sft``), ``pt``, an algorithm of `swift rlhf`, or a task."""
    talks = conversations()
    if kind == "pt":
        return [{"response": row["messages"][1]["content"]} for row in talks]
    if kind == "seq_cls":
        return [{"messages": row["messages"][:1], "label": n % 2} for n, row in enumerate(talks)]
    if kind in ("embedding", "reranker"):
        role = "user" if kind == "embedding" else "assistant"
        said = [row["messages"][1]["content"] for row in talks]
        return [
            {"messages": row["messages"][:1], "positive_messages": [[turn(role, said[n])]]}
            | {"negative_messages": [[turn(role, f"no {said[n - 1]}")], [turn(role, f"{n} is wrong")]]}
            for n, row in enumerate(talks)
        ]
    if kind == "kto":
        return [{**row, "label": n % 2 == 0} for n, row in enumerate(talks)]
    if kind in ("dpo", "orpo", "cpo", "simpo", "rm"):
        return [
            {"messages": [turn("user", row["prompt"]), turn("assistant", row["chosen"])]}
            | {"rejected_response": row["rejected"]}
            for row in pairs()
        ]
    return talks
