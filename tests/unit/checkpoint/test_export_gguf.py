"""GGUF files that Transformers reads back as the same model; what has no such form is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import CHAT_TEMPLATE, WORDS, write_tokenizer

from paceline.checkpoint.export.gguf.families import FAMILIES
from paceline.checkpoint.export.gguf.tokenizer import known_splits, tokenizer_of
from paceline.checkpoint.export.gguf.writer import FILE, check_gguf, write_gguf
from paceline.core.errors import CheckpointError, ConfigError
from paceline.plan.model.family import families

VOCAB = 330  # more rows than the byte-level tokenizer has tokens
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "num_experts": 4}
LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}


def _rope(theta: float, **more: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


#: What each family's config is made of beside (or in place of) SIZES.
TINY: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "tie_word_embeddings": True},
    "mistral": {**SIZES, "sliding_window": None},
    "qwen2": {**SIZES, **_rope(1e6)},
    "qwen2_moe": {**SIZES, **EXPERTS},
    "qwen3": {**SIZES, "head_dim": 128},
    "qwen3_moe": {**SIZES, **EXPERTS, "norm_topk_prob": True},
    "qwen3_5_text": {**SIZES, **LINEAR},
    "qwen3_5_moe_text": {
        **{key: value for key, value in {**SIZES, **LINEAR, **EXPERTS}.items() if key != "intermediate_size"},
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 16,
    },
    "gemma2": {**SIZES, "head_dim": 8},
    "gemma3_text": {**SIZES, "head_dim": 8, "num_hidden_layers": 6},
    "phi3": {**SIZES, "pad_token_id": 0},
    "stablelm": {**SIZES, "use_qkv_bias": True},
    "starcoder2": SIZES,
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCAB},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCAB},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCAB},
    "nemotron": SIZES,
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCAB},
    "lfm2": {**SIZES, "layer_types": ["conv", "full_attention"]},
    "minimax_m2": {
        **SIZES,
        **_rope(5e6, partial_rotary_factor=0.5),
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}
#: These run always, and Llama in bfloat16: they change tensors in all ways but GPT-2's and BLOOM's.
ALWAYS = ("qwen3_moe", "qwen3_5_text", "gemma2")


@pytest.fixture(scope="module")
def gguf() -> Any:
    return pytest.importorskip("gguf", reason="needs the extra gguf")


def exported(folder: Path, model_type: str, **changed: Any) -> Path:
    """A folder as ``paceline export`` writes it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**TINY[model_type], **changed})
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, TINY[model_type].get(name))
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def test_each_family_of_the_table_is_tried() -> None:
    assert set(TINY) == set(FAMILIES)


@pytest.mark.parametrize(
    ("model_type", "dtype"),
    [
        *(
            pytest.param(name, torch.float32, marks=() if name in ALWAYS else pytest.mark.slow)
            for name in FAMILIES
        ),
        ("llama", torch.bfloat16),
        *(
            pytest.param(name, torch.bfloat16, marks=pytest.mark.slow)
            for name in ("qwen3_5_moe_text", "mamba", "lfm2", "gpt2")
        ),
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_transformers_reads_the_same_model(
    gguf: Any, model_type: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = exported(tmp_path / "model", model_type)
    write_gguf(folder, dtype)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(folder / FILE, alone)
    read = AutoModelForCausalLM.from_pretrained(alone, gguf_file=FILE, dtype=torch.float32).eval()
    own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        got, wanted = read(ids).logits, own(ids).logits
    # In float32 bit for bit, but where a decay is kept as its exponent; else by the rounding of matrices.
    bound = {torch.float32: 1e-5 if model_type in ("mamba", "qwen3_5_text") else 1e-6}.get(dtype, 0.3)
    assert wanted.std() > 0.3 and (got - wanted).abs().max() <= bound
    plain, back = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(alone, gguf_file=FILE)
    text = "Shout 7: red river\n  don't 1234 \u00e4hm \u4f60\u597d <|user|>"
    assert back(text)["input_ids"] == plain(text)["input_ids"]
    assert back.chat_template == plain.chat_template
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".")) == []


def _write_pieces(folder: Path, normalizer: Any, pre_tokenizer: Any, bos: str) -> None:
    """A tokenizer of SentencePiece's kind: BPE that falls back to bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", bos, "<end>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trained = Tokenizer(models.BPE(unk_token=None))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    trainer = trainers.BpeTrainer(vocab_size=325, special_tokens=special, show_progress=False)
    trained.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    model = json.loads(trained.to_str())["model"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=model["vocab"],
            merges=[tuple(merge) for merge in model["merges"]],
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token="<end>", unk_token="<unk>"
    )
    fast.add_tokens([AddedToken("<tool>", normalized=False)])
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def test_pieces_with_bytes_are_read_back_or_refused(gguf: Any, tmp_path: Path) -> None:
    from tokenizers import normalizers, pre_tokenizers

    metaspace = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    spaces = normalizers.Replace(" ", "\u2581"), pre_tokenizers.Split(" ", "merged_with_previous")
    folder = exported(tmp_path / "llama", "llama")
    _write_pieces(folder, None, metaspace, "<s>")
    write_gguf(folder, torch.float32)
    assert (folder / FILE).exists()
    _write_pieces(folder, *spaces, "<bos>")  # Gemma's: nothing before the first word
    (folder / FILE).unlink()
    with pytest.raises(CheckpointError, match=r"read back|reads this tokenizer back from GGUF as another"):
        write_gguf(folder, torch.float32)
    assert not (folder / FILE).exists()
    gemma = exported(tmp_path / "gemma", "gemma2")
    _write_pieces(gemma, *spaces, "<bos>")
    write_gguf(gemma, torch.float32)
    assert (gemma / FILE).exists()


def test_what_the_file_cannot_say_is_refused(gguf: Any, tmp_path: Path) -> None:
    scaled = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    scaled |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    for name, family, changed in (
        ("scaled", "llama", {"rope_parameters": scaled}),
        ("bias", "llama", {"attention_bias": True}),
        ("window", "mistral", {"sliding_window": 64}),
    ):
        folder = exported(tmp_path / name, family, **changed)
        with pytest.raises(CheckpointError, match=re.escape(f"{[*changed][0]}: ")):
            write_gguf(folder, torch.float32)
        assert not (folder / FILE).exists()


def test_other_families_scores_and_adapters_are_refused_by_name(gguf: Any) -> None:
    with pytest.raises(ConfigError, match="model_type olmo2: no reader") as wrong:
        check_gguf({"model_type": "olmo2"}, is_adapter=False)
    assert ", ".join(FAMILIES) in str(wrong.value)
    refused = {kind: known.not_gguf for kind, known in families().items() if known.not_gguf}
    assert len(refused) == 5 and not refused.keys() & FAMILIES.keys()
    for family, reason in refused.items():
        with pytest.raises(ConfigError, match=re.escape(f"model_type {family}: {reason}")):
            check_gguf({"model_type": family}, is_adapter=False)
    with pytest.raises(ConfigError, match="add --merge"):
        check_gguf({"model_type": "llama"}, is_adapter=True)
    scores = {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}
    with pytest.raises(ConfigError, match="the model gives scores"):
        check_gguf(scores, is_adapter=False)
    check_gguf({"model_type": "llama"}, is_adapter=False)


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    known = tokenizer_of(tmp_path, 330)
    assert known["split"] == "gpt-2" and len(known["tokens"]) == 330 and "UNUSED" in known["tokens"][-1]
    assert len(known_splits()) == 5
    for name, split in known_splits().items():
        parts = [{"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}]
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "use_regex": False,
            "trim_offsets": False,
        }
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*parts, byte_level]}
        path.write_text(json.dumps(data))
        assert tokenizer_of(tmp_path, 330)["split"] == name
    for change in ({"pre_tokenizer": {"type": "Metaspace"}}, {"model": {"type": "Unigram", "vocab": []}}):
        path.write_text(json.dumps({**data, **change}))
        with pytest.raises(CheckpointError, match="only BPE with bytes"):
            tokenizer_of(tmp_path, 330)
