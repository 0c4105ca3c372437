"""GGUF files that Transformers reads back as the same model; what has no such form is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import write_tokenizer

from paceline.checkpoint.export_gguf import FILE, check_gguf, write_gguf
from paceline.checkpoint.gguf_tokenizer import SPLITS, tokenizer_of
from paceline.core.errors import CheckpointError, ConfigError

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 330,  # more rows than the tokenizer has tokens
    "max_position_embeddings": 128,
}


@pytest.fixture(scope="module")
def gguf() -> Any:
    return pytest.importorskip("gguf", reason="needs the extra gguf")


def exported(folder: Path, model_type: str, **changed: Any) -> Path:
    """A folder as ``paceline export`` writes it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SIZES, **changed})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize(
    ("model_type", "changed"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
        ("qwen3", {"head_dim": 128}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transformers_reads_the_same_model(
    gguf: Any, model_type: str, changed: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = exported(tmp_path / "model", model_type, **changed)
    write_gguf(folder, dtype)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(folder / FILE, alone)
    read = AutoModelForCausalLM.from_pretrained(alone, gguf_file=FILE, dtype=torch.float32).eval()
    own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if dtype is torch.bfloat16:  # matrices alone are rounded
        for parameter in own.parameters():
            if parameter.ndim > 1:
                parameter.data = parameter.data.to(dtype).float()
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.equal(read(ids).logits, own(ids).logits)
    text = "Shout 7: red river\n  don't 1234 ähm 你好"
    plain, back = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(alone, gguf_file=FILE)
    encoded = back(text, add_special_tokens=False)["input_ids"]
    assert encoded == plain(text, add_special_tokens=False)["input_ids"]
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".")) == []


def test_what_the_file_cannot_say_is_refused(gguf: Any, tmp_path: Path) -> None:
    scaled = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    scaled |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    for name, changed in (("scaled", {"rope_parameters": scaled}), ("bias", {"attention_bias": True})):
        folder = exported(tmp_path / name, "llama", **changed)
        with pytest.raises(CheckpointError, match=re.escape(f"{[*changed][0]}: ")):
            write_gguf(folder, torch.float32)
        assert not (folder / FILE).exists()


def test_other_families_and_adapters_are_refused_by_name(gguf: Any) -> None:
    with pytest.raises(ConfigError, match="model_type gemma2") as refused:
        check_gguf({"model_type": "gemma2"}, is_adapter=False)
    assert "llama, qwen2, qwen3" in str(refused.value)
    with pytest.raises(ConfigError, match="add --merge"):
        check_gguf({"model_type": "llama"}, is_adapter=True)
    check_gguf({"model_type": "llama"}, is_adapter=False)


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    known = tokenizer_of(tmp_path, 330)
    assert known["split"] == "gpt-2" and len(known["tokens"]) == 330 and "UNUSED" in known["tokens"][-1]
    for split, name in SPLITS.items():
        parts = [{"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*parts, byte_level]}
        path.write_text(json.dumps(data))
        assert tokenizer_of(tmp_path, 330)["split"] == name
    for change in ({"pre_tokenizer": {"type": "Metaspace"}}, {"model": {"type": "Unigram", "vocab": []}}):
        path.write_text(json.dumps({**data, **change}))
        with pytest.raises(CheckpointError, match="byte-level BPE"):
            tokenizer_of(tmp_path, 330)
