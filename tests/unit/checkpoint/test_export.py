"""The exported folder: loads with equal logits, whole or not at all."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_samples import OneRank, whole

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.export.hf_export import export_hf
from paceline.checkpoint.export.hf_folder import check_sources
from paceline.checkpoint.export.main import choose, main
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.rundir import RunDir


@pytest.fixture(autouse=True)
def loader_threads_end() -> Iterator[None]:
    """Transformers' weight loader lets its threads end on their own, a moment later."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(10)


IDS = torch.tensor([[1, 5, 9, 2, 30]])


def model_of(seed: int = 0, **changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 40,
    }
    return LlamaForCausalLM(LlamaConfig(**{**sizes, "tie_word_embeddings": False, **changes})).eval()


def saved(
    run: RunDir, model: Any, step: int = 3, config: dict[str, Any] | None = None, **kwargs: Any
) -> Path:
    shards = [whole(n, p.detach()) for n, p in model.named_parameters()]
    # moments are not exported
    shards += [whole(n, torch.full_like(p, float("nan")), "exp_avg") for n, p in model.named_parameters()]
    files = {
        "config.json": json.dumps(config if config is not None else model.config.to_dict()).encode(),
        "tokenizer_config.json": b'{"a": 1}',
    }
    return Checkpointer(run, OneRank(), **kwargs).save(step, shards, {}, files)


def logits(folder: Path, **kwargs: Any) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, **kwargs).eval()(IDS).logits


@pytest.mark.parametrize(("behind", "pad"), [("[END]", "[X]"), ("", "[END]")])
def test_padding_is_no_token_that_ends_every_text(run: RunDir, tmp_path: Path, behind: str, pad: str) -> None:
    """Qwen3-Embedding's tokenizer writes its padding token behind each text; a class that reads the last
    token which is not padding would read the one before, and could not read several texts without one.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        LlamaForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    made = Tokenizer(models.WordLevel({"[END]": 0, "[X]": 1, "a": 2, "b": 3, "[EOS]": 4}, "[X]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(f"$A {behind}".strip(), None, [("[END]", 0)])
    own = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[END]", eos_token="[EOS]", extra_special_tokens=["[X]"]
    )
    own.save_pretrained(tmp_path / "own")
    files = {file.name: file.read_bytes() for file in (tmp_path / "own").iterdir()}
    policy = model_of(pad_token_id=0)
    config = type(policy.config).from_dict(policy.config.to_dict() | {"id2label": {0: "LABEL_0"}})
    model: Any = LlamaForSequenceClassification(config).eval()
    model.config.architectures = ["LlamaForSequenceClassification"]
    files |= {"generation_config.json": json.dumps({"eos_token_id": 4, "pad_token_id": 0}).encode()}
    files |= {"config.json": json.dumps(model.config.to_dict()).encode()}
    shards = [whole(n, p.detach(), role="reward") for n, p in model.named_parameters()]
    export_hf(Checkpointer(run, OneRank()).save(3, shards, {}, files), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    loaded: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert tokenizer.pad_token == pad and loaded.config.pad_token_id == tokenizer.pad_token_id
    texts = ["a b", "b a a b"]
    with torch.no_grad():
        scores = loaded(**tokenizer(texts, padding=True, return_tensors="pt")).logits[:, 0]
        for text, score in zip(texts, scores, strict=True):
            ids = torch.tensor([own(text).input_ids])
            torch.testing.assert_close(score, model.score(model.model(ids).last_hidden_state[0, -1])[0])


@pytest.mark.parametrize("tied", [False, True])
def test_equal_logits(run: RunDir, tmp_path: Path, tied: bool) -> None:
    model = model_of(tie_word_embeddings=tied)
    report = export_hf(saved(run, model), tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(logits(tmp_path / "out"), model(IDS).logits)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["dtype"] == "float32"
    assert set(report.files) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer_config.json",
    }
    assert report.num_parameters == sum(p.numel() for p in model.parameters()) and report.load_checked


@pytest.mark.parametrize("pad", [0, 2])
def test_a_value_model_becomes_one_that_scores(run: RunDir, tmp_path: Path, pad: int) -> None:
    """Its run saved the policy's config; a padding token that ends answers too is left out."""
    from transformers import AutoModelForSequenceClassification, LlamaForSequenceClassification

    policy = model_of(1)
    torch.manual_seed(2)
    one_label = type(policy.config).from_dict(policy.config.to_dict() | {"id2label": {0: "LABEL_0"}})
    value = LlamaForSequenceClassification(one_label).eval()
    shards = [whole(n, p.detach()) for n, p in policy.named_parameters()]
    shards += [whole(n, p.detach(), role="value") for n, p in value.named_parameters()]
    files = {
        "config.json": json.dumps(policy.config.to_dict()).encode(),
        "generation_config.json": json.dumps({"eos_token_id": [2], "pad_token_id": pad}).encode(),
        "tokenizer_config.json": b"{}",
    }
    path = Checkpointer(run, OneRank()).save(3, shards, {}, files)
    export_hf(path, tmp_path / "value", role="value")
    loaded: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "value").eval()
    assert loaded.config.num_labels == 1 and loaded.config.pad_token_id == (0 if pad == 0 else None)
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, value(IDS).logits)
    export_hf(path, tmp_path / "policy")
    with torch.no_grad():
        assert torch.equal(logits(tmp_path / "policy"), policy(IDS).logits)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precision_is_the_cast(run: RunDir, tmp_path: Path, dtype: str) -> None:
    model = model_of()
    export_hf(saved(run, model), tmp_path / "out", dtype)
    with torch.no_grad():
        expected = model.to(getattr(torch, dtype))(IDS).logits
    assert torch.equal(logits(tmp_path / "out", dtype="auto"), expected)


def test_shards_with_an_index(run: RunDir, tmp_path: Path) -> None:
    model = model_of()
    report = export_hf(saved(run, model), tmp_path / "out", max_shard_bytes=8000)
    assert sum(name.endswith(".safetensors") for name in report.files) > 1
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(dict(model.named_parameters()))
    with torch.no_grad():
        assert torch.equal(logits(tmp_path / "out"), model(IDS).logits)


def broken(run: RunDir, change: Callable[[Any], None], **kwargs: Any) -> Path:
    model = model_of()
    with torch.no_grad():
        change(model)
    return saved(run, model, **kwargs)


def test_not_a_number_is_named(run: RunDir, tmp_path: Path) -> None:
    path = broken(run, lambda m: m.lm_head.weight[0].fill_(float("nan")))
    with pytest.raises(CheckpointError, match="'lm_head.weight' contains 16 values"):
        export_hf(path, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_what_float16_cannot_hold_is_named(run: RunDir, tmp_path: Path) -> None:
    path = broken(run, lambda m: m.model.norm.weight[0].fill_(1e5))
    with pytest.raises(
        CheckpointError, match=r"'model.norm.weight' reaches 1e\+05, which float16 cannot represent"
    ):
        export_hf(path, tmp_path / "out", "float16")
    export_hf(path, tmp_path / "out", "bfloat16")


def test_tensors_that_do_not_fit_the_config_are_named(run: RunDir, tmp_path: Path) -> None:
    model = model_of()
    path = saved(run, model, config={**model.config.to_dict(), "num_hidden_layers": 3})
    with pytest.raises(CheckpointError, match="missing: model.layers.2.input_layernorm.weight"):
        export_hf(path, tmp_path / "out")
    path = saved(run, model, config={**model.config.to_dict(), "num_hidden_layers": 1})
    with pytest.raises(CheckpointError, match="unknown: model.layers.1.input_layernorm.weight"):
        export_hf(path, tmp_path / "out")
    path = saved(run, model, config={**model.config.to_dict(), "vocab_size": 41})
    with pytest.raises(
        CheckpointError, match="have another shape: lm_head.weight, model.embed_tokens.weight"
    ):
        export_hf(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_private_keys_of_the_config_do_not_reach_the_export(run: RunDir, tmp_path: Path) -> None:
    model = model_of()
    hostile = {
        **model.config.to_dict(),
        "_attn_implementation_internal": "someone/kernel",
        "auto_map": {"AutoModelForCausalLM": "evil.Model"},
    }
    export_hf(saved(run, model, config=hostile), tmp_path / "out")
    assert not [k for k in json.loads((tmp_path / "out" / "config.json").read_text()) if k.startswith("_")]


def test_the_destination_is_respected(run: RunDir, tmp_path: Path) -> None:
    path, out = saved(run, model_of()), tmp_path / "out"
    out.mkdir()
    export_hf(path, out)  # an empty folder is fine
    with pytest.raises(ConfigError, match="export.destination"):
        export_hf(path, out)
    (out / "old").write_text("x")
    export_hf(path, out, overwrite=True)
    assert not (out / "old").exists() and (out / "config.json").exists()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine").write_text("x")
    (run.root / "config.json").write_text("{}")
    for place in (
        "notes",
        "run",
        "run/checkpoints",
        ".",
    ):  # no models: the user's own files, and what is read
        with pytest.raises(ConfigError, match="export.destination"):
            export_hf(path, tmp_path / place, overwrite=True)
    shutil.rmtree(tmp_path / "notes")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(out)
    for place in ("file", "link"):
        with pytest.raises(ConfigError, match="export.destination"):
            export_hf(path, tmp_path / place, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link", "out", "run"]


def test_an_adapters_base_is_not_replaced_by_the_adapter(tmp_path: Path) -> None:
    base, checkpoint = tmp_path / "models" / "base", tmp_path / "checkpoint"
    for folder in (base, checkpoint / "hf"):
        folder.mkdir(parents=True)
    (checkpoint / "hf" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    check_sources(tmp_path / "out", checkpoint)
    for to in (base, base.parent, checkpoint):
        with pytest.raises(ConfigError, match="export.destination"):
            check_sources(to, checkpoint)


def test_a_failed_overwrite_leaves_the_old_folder(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("x")
    path = broken(run, lambda m: m.lm_head.weight.fill_(float("inf")))
    with pytest.raises(CheckpointError):
        export_hf(path, out, overwrite=True)
    assert [p.read_text() for p in out.iterdir()] == ["x"]


def test_bad_wishes(run: RunDir, tmp_path: Path) -> None:
    path = saved(run, model_of())
    with pytest.raises(ConfigError, match="export.dtype"):
        export_hf(path, tmp_path / "out", "int4")
    with pytest.raises(CheckpointError, match="roles: policy"):
        export_hf(path, tmp_path / "out", role="value")


@pytest.mark.parametrize("which", ["result", "latest"])
def test_a_run_that_has_saved_nothing_is_told_so(run: RunDir, which: str) -> None:
    """Not how to resume."""
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    with pytest.raises(CheckpointError) as refused:
        choose(run.root, which, [])
    (found,) = refused.value.diagnostics
    assert found.code == "export.no_checkpoint" and "save_strategy" in (found.hint or "")


def test_the_command(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = model_of(1), model_of(2)
    saved(run, first, step=1)
    saver = Checkpointer(run, OneRank())
    saver.protect(1)
    saved(run, second, step=2)

    def export(to: str, *more: str, at: Path = run.root) -> int:
        return main(["export", str(at), "--to", str(tmp_path / to), *more])

    assert (
        export("a") == 0
        and export("b", "--checkpoint", "best") == 0
        and export("c", "--checkpoint", "step-1") == 0
    )
    assert export("d", at=run.checkpoint(1)) == 0
    run.result_json.write_text(json.dumps({"checkpoint": str(run.checkpoint(1))}))
    assert export("e") == 0 and export("f", "--checkpoint", "latest") == 0
    with torch.no_grad():
        for name, model in zip("abcdef", (second, first, first, first, first, second), strict=True):
            assert torch.equal(logits(tmp_path / name), model(IDS).logits), name
    assert "reopened and compared" in capsys.readouterr().out
    assert export("a") == 2 and "export.destination" in capsys.readouterr().err
    assert export("g", "--checkpoint", "step-9") == 2 and "step-00000002" in capsys.readouterr().err
    assert export("g", "--checkpoint", "../x") == 2
    saver.protect(None)
    assert export("g", "--checkpoint", "best") == 1 and "export.no_best" in capsys.readouterr().err
    assert export("g", at=tmp_path / "nowhere") == 1 and "there is no such folder" in capsys.readouterr().err
    assert not (tmp_path / "g").exists()


def test_experts_are_exported_under_the_released_names_with_the_router_s_buffers(
    run: RunDir, tmp_path: Path
) -> None:
    from safetensors.torch import load_file
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "moe_intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "vocab_size": 40,
    }
    model: Any = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes)).eval()
    model.model.layers[1].mlp.gate.e_score_correction_bias.copy_(torch.arange(4.0))
    shards = [whole(n, p.detach()) for n, p in model.named_parameters()]
    buffers = [(n, b) for n, b in model.named_buffers() if n in model.state_dict()]
    files = {"config.json": json.dumps(model.config.to_dict()).encode()}
    without = Checkpointer(run, OneRank()).save(1, shards, {}, files)
    with pytest.raises(CheckpointError, match="e_score_correction_bias"):
        export_hf(without, tmp_path / "none")
    export_hf(
        Checkpointer(run, OneRank()).save(
            2, [*shards, *(whole(n, b, "buffer") for n, b in buffers)], {}, files
        ),
        tmp_path / "out",
    )
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / place / "model.safetensors") for place in ("out", "theirs"))
    assert set(ours) == set(theirs) and "model.layers.1.mlp.experts.0.gate_proj.weight" in ours
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
