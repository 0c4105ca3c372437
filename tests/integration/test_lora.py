"""Adapters through the whole program and under the strategies that shard."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from support import Run, write_yaml

from paceline.checkpoint.export.hf_export import export_hf
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir
from paceline.runlog.events import Step, read_events

pytestmark = [pytest.mark.integration]
pytest.importorskip("peft")
Tiny = Callable[..., dict[str, Any]]
Paceline = Callable[..., Run]
IDS = torch.tensor([[7, 30, 110, 61, 12, 255]])
LORA = {
    "r": 4,
    "alpha": 8,
    "dropout": 0.0,
    "target_modules": ["all-linear"],
    "modules_to_save": [],
    "bias": "none",
    "use_rslora": False,
    "start": None,
    "quantization": None,
}
PISSA = {**LORA, "init_lora_weights": "pissa"}
DORA = {**LORA, "use_dora": True}
OFT = {**LORA, "oft_block_size": 4}
QLORA = {**LORA, "quantization": {"bits": 4, "type": "nf4", "double_quant": True, "storage": "uint8"}}
WORKER = Path(__file__).with_name("lora_worker.py")


def train(paceline: Paceline, config: dict[str, Any], folder: Path, name: str, nproc: int) -> list[Step]:
    done = paceline("train", str(write_yaml(folder / f"{name}.yaml", config)), "--nproc", str(nproc))
    assert done.code == 0, done.err
    records = read_events(RunDir.at(config["training"]["output_dir"]).events(0))
    return [r.event for r in records if isinstance(r.event, Step)]


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {
        name: t for file in sorted(checkpoint.glob("*.safetensors")) for name, t in load_file(file).items()
    }


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def save_base(folder: Path, shape: dict[str, Any], seed: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(folder)


def test_an_adapter_trains_resumes_and_is_exported_alone_and_merged(
    tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    base = tmp_path / "base"
    save_base(base, tiny()["model"]["config"], seed=3)

    def config(name: str, lora: dict[str, Any], **training: Any) -> dict[str, Any]:
        made = tiny(
            output_dir=str(tmp_path / name),
            save_strategy="steps",
            save_steps=3,
            max_steps=6,
            max_grad_norm=0.2,
            learning_rate=1e-2,
            gradient_checkpointing=True,
            **training,
        )
        model = {"name_or_path": str(base), "tokenizer": made["model"]["tokenizer"]}
        return {**made, "model": model, "lora": lora}

    one = train(paceline, config("one", {"r": 4}, per_device_train_batch_size=4), tmp_path, "one", 1)
    two = train(paceline, config("two", {"r": 4}), tmp_path, "two", 2)
    assert one[-1].loss < one[0].loss - 0.05 and max(s.grad_norm or 0.0 for s in one) > 0.2
    assert [s.loss for s in two] == pytest.approx([s.loss for s in one], abs=2e-6)
    step = tmp_path / "two/checkpoints/step-00000003"
    part = train(paceline, config("part", {"r": 4}, resume_from_checkpoint=str(step)), tmp_path, "part", 2)
    assert [(s.step, s.loss, s.grad_norm) for s in part] == [(s.step, s.loss, s.grad_norm) for s in two[3:]]
    last = {name: tensors(tmp_path / name / "checkpoints/step-00000006") for name in ("two", "part")}
    assert last["two"].keys() == last["part"].keys() and len(last["two"]) == 28 * 4
    assert all(".lora_" in name and torch.equal(t, last["part"][name]) for name, t in last["two"].items())

    done = paceline("export", str(tmp_path / "two"), "--to", str(tmp_path / "adapter"))
    assert done.code == 0, done.err
    there = {p.name for p in (tmp_path / "adapter").iterdir()}
    assert {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
    } <= there and "config.json" not in there
    final = tmp_path / "two/checkpoints/step-00000006"
    assert export_hf(final, tmp_path / "merged", merge=True).kind == "merged model"
    model = load(str(base))
    before = logits(model)
    adapted = logits(PeftModel.from_pretrained(model, str(tmp_path / "adapter")))
    assert (adapted - before).abs().max() > 1e-2
    torch.testing.assert_close(logits(load(str(tmp_path / "merged"))), adapted, rtol=0, atol=1e-5)
    shared = config("tp", {"r": 4}, per_device_train_batch_size=4, distributed_strategy="fsdp")
    tp = train(paceline, {**shared, "parallelism": {"tp_size": 2}}, tmp_path, "tp", 2)
    assert [s.loss for s in tp] == pytest.approx([s.loss for s in one], abs=2e-6)
    last_of_tp = tmp_path / "tp/checkpoints/step-00000006"
    for merge in (False, True):
        export_hf(last_of_tp, tmp_path / f"tp-{merge}", merge=merge)
    opened = logits(PeftModel.from_pretrained(load(str(base)), str(tmp_path / "tp-False")))
    torch.testing.assert_close(logits(load(str(tmp_path / "tp-True"))), opened, rtol=0, atol=1e-5)
    torch.testing.assert_close(opened, adapted, rtol=0, atol=1e-3)
    on = train(paceline, config("on", {"adapter_name_or_path": str(tmp_path / "adapter")}), tmp_path, "on", 1)
    assert on[0].loss < two[0].loss - 0.05

    save_base(base, tiny()["model"]["config"], seed=4)  # other weights under the same name
    with pytest.raises(CheckpointError, match="export.base_model"):
        export_hf(final, tmp_path / "wrong", merge=True)
    assert not (tmp_path / "wrong").exists()
    again = config("again", {"r": 4}, resume_from_checkpoint=str(step))
    done = paceline("train", str(write_yaml(tmp_path / "again.yaml", again)), "--nproc", "1")
    assert done.code != 0 and "resume.base_model" in done.err


def cells(wanted: dict[str, Any], world_size: int, folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    (folder / "wanted.json").write_text(json.dumps(wanted))
    codes, said = run_ranks(str(folder / "wanted.json"), world_size, folder, script=WORKER)
    assert codes == [0] * world_size, "\n".join(said)[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]


def share(cells: dict[str, Any], fast: tuple[str, ...], tier: str) -> dict[str, Any]:
    """Return the cells of a tier: those in ``fast``, or all others."""
    return {name: cell for name, cell in cells.items() if (name in fast) is (tier == "fast")}


TIERS = ["fast", pytest.param("full", marks=pytest.mark.full)]


@pytest.mark.parametrize("tier", TIERS)
def test_adapters_learn_the_same_sharded_and_in_four_bits(tmp_path: Path, tier: str) -> None:
    """Six steps with an evaluation and an answer in their midst (after which 4-bit layers once stopped to
    learn), and a bit-exact resume.
    """
    pytest.importorskip("bitsandbytes")
    wide = {"compute": "float64", "master": "float64"}
    alone = {
        "lora": {"strategy": "single", "mesh": {}, "adapter": LORA, **wide},
        "qlora": {"strategy": "single", "mesh": {}, "adapter": QLORA},
        "pissa": {"strategy": "single", "mesh": {}, "adapter": PISSA, **wide},
        "dora": {"strategy": "single", "mesh": {}, "adapter": DORA, "b_rate_ratio": 4.0},
        "oft": {"strategy": "single", "mesh": {}, "adapter": OFT},
        "qoft": {"strategy": "single", "mesh": {}, "adapter": {**QLORA, "oft_block_size": 4}},
    }
    dora = {"adapter": DORA, "b_rate_ratio": 4.0}
    sharded = {
        "lora fsdp": {"strategy": "fsdp", "adapter": LORA, **wide},
        "lora ddp": {"strategy": "ddp", "mesh": {"dp_replicate": 2}, "adapter": LORA, **wide},
        "pissa fsdp": {"strategy": "fsdp", "adapter": PISSA, "engine": {"meta_start": True}, **wide},
        "dora fsdp": {"strategy": "fsdp", "engine": {"meta_start": True}, **dora},
        "dora ddp": {"strategy": "ddp", "mesh": {"dp_replicate": 2}, **dora},
        "oft fsdp": {"strategy": "fsdp", "engine": {"meta_start": True}, "adapter": OFT},
        "oft ddp": {"strategy": "ddp", "mesh": {"dp_replicate": 2}, "adapter": OFT},
        "oft fsdp bf16": {"strategy": "fsdp", "adapter": OFT, "compute": "bfloat16"},
        "qoft fsdp": {"strategy": "fsdp", "adapter": {**QLORA, "oft_block_size": 4}},
        "qlora fsdp": {"strategy": "fsdp", "adapter": QLORA},
        "qlora fsdp bf16": {"strategy": "fsdp", "adapter": QLORA, "compute": "bfloat16"},
    }
    if find_spec("deepspeed") is not None:
        sharded["dora zero2"] = {"strategy": "zero2", "engine": {"zero_stage": 2}, **dora}
        sharded["oft zero2"] = {"strategy": "zero2", "engine": {"zero_stage": 2}, "adapter": OFT}
    files = {"files": str(tmp_path / "base"), "engine": {"meta_start": True}}
    sharded["qlora fsdp files"] = {**sharded["qlora fsdp"], **files}
    sharded = share(sharded, ("lora fsdp", "dora fsdp", "oft fsdp", "qlora fsdp", "qlora fsdp files"), tier)
    alone = {name: cell for name, cell in alone.items() if any(n.split()[0] == name for n in sharded)}
    expected = cells(alone, 1, tmp_path / "one")[0]
    for found in cells(sharded, 2, tmp_path / "two"):
        assert found.get("qlora fsdp files") == found.get("qlora fsdp")  # each rank packs what it reads
        for name, cell in found.items():
            reference = expected[name.split()[0]]
            bound = 5e-3 if "bf16" in name else 1e-10 if "compute" in sharded[name] else 2e-6
            losses, norms = zip(*cell["steps"], strict=True)
            assert losses[-1] < losses[0] - (0.02 if "oft" in name else 0.2) and min(norms) > 0
            assert losses == pytest.approx([s[0] for s in reference["steps"]], abs=bound), name
            assert cell["eval"] == pytest.approx(reference["eval"], abs=bound), name
            if "bf16" not in name:
                assert norms == pytest.approx([s[1] for s in reference["steps"]], abs=10 * bound), name
            assert cell["parameters"].keys() == reference["parameters"].keys() and len(
                cell["parameters"]
            ) == {"dora": 42, "oft": 14, "qoft": 14}.get(name.split()[0], 28)
            assert cell["again"] == cell["steps"][3:] and cell["parameters_again"] == cell["parameters"], name


@pytest.mark.full  # the program's losses with tp_size: 2, above
@pytest.mark.parametrize("tier", TIERS)
def test_adapters_learn_the_same_beside_tensor_parallel_shards(tmp_path: Path, tier: str) -> None:
    """Dropout draws one process's mask; sequence parallelism pads rows, which are then other draws."""
    wide = {"compute": "float64", "master": "float64"}
    dropout = {**LORA, "dropout": 0.3}
    ends = ["embed_tokens", "lm_head", "norm"]
    saved = {**LORA, "target_modules": ["q_proj", "o_proj", "down_proj"], "modules_to_save": ends}
    olora = {**LORA, "init_lora_weights": "olora"}
    alone = {"lora": LORA, "dropout": dropout, "saved": saved, "olora": olora}
    sharded = {
        "lora sp lp": {"sequence_parallel": True, "loss_parallel": True, "meta_start": True},
        "dropout tp": {},
        "saved lp": {"loss_parallel": True},
        "olora tp": {"meta_start": True},
    }
    tp = {
        name: {
            "strategy": "fsdp",
            "mesh": {"tp": 2},
            "engine": engine,
            "adapter": alone[name.split()[0]],
            **wide,
        }
        for name, engine in sharded.items()
    }
    if find_spec("deepspeed") is not None:  # which takes peft's wrapper for a linear layer, and drops A and B
        stage = {"zero_stage": 1, "autotp_size": 2}
        for name in ("dropout", "saved", "olora"):
            tp[f"{name} autotp"] = {
                "strategy": "zero1",
                "mesh": {"tp": 2},
                "engine": stage,
                "adapter": alone[name],
            }
    tp = share(tp, ("lora sp lp", "saved lp"), tier)
    base = {"strategy": "single", "mesh": {}, **wide}
    named = {name.split()[0] for name in tp}
    expected = cells({n: {**base, "adapter": alone[n]} for n in named}, 1, tmp_path / "one")[0]
    for found in cells(tp, 2, tmp_path / "two"):
        for name, cell in found.items():
            reference, bound = expected[name.split()[0]], 1e-6 if "autotp" in name else 1e-12
            assert cell["steps"][-1][0] < cell["steps"][0][0] - 0.2
            for ours, one in zip(cell["steps"], reference["steps"], strict=True):
                assert ours == pytest.approx(one, rel=bound), name
            assert cell["eval"] == pytest.approx(reference["eval"], rel=bound), name
            assert cell["parameters"].keys() == reference["parameters"].keys()
            for key, values in cell["parameters"].items():
                assert values == pytest.approx(reference["parameters"][key], abs=10 * bound), (name, key)
            assert cell["again"] == cell["steps"][3:] and cell["parameters_again"] == cell["parameters"], name
