"""Another program's adapter folder merged by ``paceline export``: peft's ``merge_and_unload`` judges."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import swept, write_tokenizer

from paceline.checkpoint.convert.convert import convert
from paceline.checkpoint.export.main import main
from paceline.core.errors import CheckpointError
from tests.unit.models.model_families import FAMILIES

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore")  # peft's own, of settings that it ignores
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"r": 4, "lora_alpha": 16, "target_modules": "all-linear"}),
    ("llama", {"r": 3, "use_rslora": True, "target_modules": ["q_proj", "down_proj"]}),
    (
        "llama",
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3}, "target_modules": "all-linear"},
    ),
    ("llama", {"modules_to_save": ["lm_head", "embed_tokens"], "target_modules": ["v_proj"]}),
    ("llama_tied", {"bias": "all", "target_modules": ["o_proj"]}),
    ("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    ("qwen2", {"target_modules": r".*\.(q|up)_proj", "init_lora_weights": "pissa"}),
]


def base_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def make(family: str, settings: dict[str, Any], folder: Path) -> dict[str, torch.Tensor]:
    """Write ``base`` and ``saves/lora`` as peft does; return the weights that peft merges from them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(4)
    config = dict(FAMILIES[family])
    AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config.pop("model_type"), **config)
    ).save_pretrained(folder / "base")
    write_tokenizer(folder / "tokenizer")
    for file in (folder / "tokenizer").iterdir():
        shutil.copy(file, folder / "base")
    model = peft.get_peft_model(
        base_model(folder / "base"), peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape), alpha=0.05)
    model.save_pretrained(folder / "saves/lora")
    merged = peft.PeftModel.from_pretrained(
        base_model(folder / "base"), folder / "saves/lora"
    ).merge_and_unload()
    return {name: tensor.detach().clone() for name, tensor in merged.state_dict().items()}


@pytest.mark.parametrize(("family", "settings"), swept(CASES, 3))
def test_a_merged_folder_is_what_peft_merges(
    family: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = make(family, settings, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["export", "saves/lora", "--merge", "--model", "base", "--to", "merged"]) == 0
    got = base_model(tmp_path / "merged").state_dict()
    assert got.keys() == want.keys()
    assert max((got[name] - want[name]).abs().max().item() for name in want) <= 1e-6
    before = base_model(tmp_path / "base").state_dict()
    assert max((before[name] - want[name]).abs().max().item() for name in want) > 1e-3
    assert (tmp_path / "merged/tokenizer.json").is_file()
    assert not list(tmp_path.glob("merged/adapter*")) and not list(tmp_path.glob(".paceline*"))


def test_the_base_that_the_folder_names_and_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(*CASES[0], tmp_path)
    file = tmp_path / "saves/lora/adapter_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "base_model_name_or_path": "./base"}))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    adapter, base = str(tmp_path / "saves/lora"), str(tmp_path / "base")
    assert main(["export", adapter, "--merge", "--to", "merged"]) == 0
    assert "lora exported to" in capsys.readouterr().out

    def said(*arguments: str) -> str:
        assert main(["export", *arguments]) != 0
        return capsys.readouterr().err

    assert "--merge --model BASE" in said(adapter, "--to", "again")
    assert "there is no" not in said(adapter, "--merge", "--to", base, "--overwrite")
    assert "which the export reads" in said(adapter, "--merge", "--to", adapter, "--overwrite")
    missing = said(adapter, "--merge", "--to", "again", "--model", "./nowhere")
    assert "./nowhere, in none of" in missing and "Repo id" not in missing and "--model" in missing
    file.write_text(json.dumps({**settings, "lora_bias": True}))
    assert "lora_bias" in said(adapter, "--merge", "--to", "again", "--model", base)
    for other in ({"r": 5}, {"rank_pattern": {"v_proj": 2}}):  # the scale would be another
        file.write_text(json.dumps({**settings, **other}))
        assert "error[" in said(adapter, "--merge", "--to", "again", "--model", base)
    file.write_text(json.dumps(settings))
    config = tmp_path / "base/config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 1'))
    assert "error[" in said(adapter, "--merge", "--to", "again", "--model", base)
    assert not (tmp_path / "elsewhere/again").exists() and not list(tmp_path.glob("elsewhere/.*"))


def test_convert_names_what_a_folder_lacks_and_what_it_is_good_for(tmp_path: Path) -> None:
    make(*CASES[0], tmp_path)
    adapter = tmp_path / "saves/lora"

    def said(folder: Path) -> str:
        with pytest.raises(CheckpointError) as refused:
            convert(folder, tmp_path / "conv", model=tmp_path / "base", moments=False)
        (finding,) = refused.value.diagnostics
        assert finding.code == "convert.unknown"
        return f"{finding.what}; {finding.hint}"

    assert "trainer_state.json" in said(adapter)
    assert f"paceline export {adapter} --merge --model BASE --to DIR" in said(adapter)
    assert "trainer_state.json" in said(tmp_path / "base") and "name_or_path" in said(tmp_path / "base")
    (adapter / "adapter_model.safetensors").rename(tmp_path / "aside.safetensors")
    assert "there is no adapter_model.safetensors" in said(adapter)
    (tmp_path / "aside.safetensors").rename(adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").unlink()
    assert "there is no adapter_config.json" in said(adapter)
