"""What a base folder says of stop tokens, templates and files, and what becomes of it in checkpoints, exports
and answers: Transformers loads and generates from both, and judges.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_samples import OneRank, whole
from generated_bases import BESIDE, FIRST, LEFT, SPECIALS, Base, make_base

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.convert.convert import convert
from paceline.checkpoint.export.hf_export import export_hf
from paceline.config.sections.data import DataSection
from paceline.config.sections.model import ModelSection
from paceline.core.rundir import RunDir
from paceline.data.prepare.prepare import Prepared, prepare
from paceline.evaluation.open_run import load_model, prepared_without_copy
from paceline.generation.engine import Request, RolloutSampling
from paceline.generation.local import LocalEngine
from paceline.models.factory import HFModelFactory
from paceline.models.special_tokens import end_tokens
from paceline.plan.plan import AdapterSpec
from paceline.plan.plan_json import to_json
from paceline.protocols.model import RootModule
from paceline.training.checkpointing.contents import hugging_face_files, kept_files

PROMPT = [7, 8, 9]
TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {}}}
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Ho."}]
DEFAULT_SUITE, WHOLE = range(6), range(6, 66)


def rows_of(base: Base, folder: Path) -> str:
    """Rows that the base can write, with tools where it has a template for them."""
    path = folder / "rows.jsonl"
    tools = [{"messages": TALK, "tools": [TOOL]}] if base.layout in ("jinja", "additional", "list") else []
    rows = [{"text": "a b"}] if base.layout == "none" else [{"messages": TALK}, *tools]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


class Trained:
    """A base after a training that changed nothing."""

    def __init__(self, base: Base, folder: Path, adapter: AdapterSpec | None) -> None:
        data, self.model = rows_of(base, folder), ModelSection(name_or_path=str(base.folder))
        section = DataSection(train=data, num_proc=1, max_length=256)  # type: ignore[arg-type]
        self.prepared: Prepared = prepare(section, self.model, seed=1, cache_dir=folder / "cache")
        factory = HFModelFactory(self.model, vocab_size=self.prepared.vocab_size, adapter=adapter)
        self.root: RootModule = factory()
        kept = kept_files(self.model, self.prepared.tokenizer_path)
        own = self.root.adapter  # type: ignore[attr-defined]
        files = hugging_face_files(factory.saved_config, self.root.hf, self.prepared, kept, own)
        state: dict[str, Any] = {}
        if adapter is not None:
            config = {"model": {"name_or_path": str(base.folder)}, "training": {}}
            state = {"adapter": to_json(own.spec), "base_model": dict(own.base), "config": config}
        shards = [whole(n, p.detach()) for n, p in self.root.plain_named_parameters() if p.requires_grad]
        self.checkpoint = Checkpointer(RunDir.at(folder / "run"), OneRank()).save(1, shards, state, files)


def expected(base: Base) -> tuple[Any, Any, set[int]]:
    """Return config, generation config (as dictionaries) and stop tokens: those of Transformers' Trainer, and
    the marks with which the templates end a turn.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.trainer_utils import align_special_tokens

    model = AutoModelForCausalLM.from_pretrained(base.folder)
    align_special_tokens(model, AutoTokenizer.from_pretrained(base.folder))
    config, generation = model.config.to_dict(), model.generation_config.to_dict()
    eos = generation.pop("eos_token_id")
    stops = {*(eos if isinstance(eos, list) else [eos]), *(FIRST + SPECIALS.index(end) for end in base.ends)}
    return config, generation, stops - {None}


def answer_of(stops: set[int], writes: int, longest: int) -> list[int]:
    return [writes] * (1 if writes in stops else longest)


@torch.no_grad()
def check(base: Base, folder: Path) -> None:
    """Compare an exported folder with its base."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config, generation, stops = expected(base)
    model = AutoModelForCausalLM.from_pretrained(folder)
    found = model.generation_config.to_dict()
    eos = found.pop("eos_token_id")
    assert set(eos if isinstance(eos, list) else [eos]) == stops
    silent = ("transformers_version", "dtype", "_from_model_config")
    assert {k: v for k, v in found.items() if k not in silent} == {
        k: v for k, v in generation.items() if k not in silent
    }
    read = model.config.to_dict()
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        assert read[name] == config[name], name
    # tokenizer and templates
    own, saved = (AutoTokenizer.from_pretrained(one) for one in (base.folder, folder))
    assert saved.get_vocab() == own.get_vocab() and saved.special_tokens_map == own.special_tokens_map
    assert saved.chat_template == own.chat_template
    text = "a <|im_end|>b</s> é"
    assert saved(text)["input_ids"] == own(text)["input_ids"]
    # files
    for name in (*BESIDE, *LEFT, "tokenizer.json", "tokenizer_config.json"):
        held = (
            (base.folder / name).read_bytes() if (base.folder / name).is_file() and name not in LEFT else None
        )
        assert ((folder / name).read_bytes() if (folder / name).is_file() else None) == held, name
    # answers
    ids = torch.tensor([PROMPT])
    written = model.generate(ids, max_new_tokens=6, do_sample=False, attention_mask=torch.ones_like(ids))
    assert written[0, len(PROMPT) :].tolist() == answer_of(stops, base.writes, 6)


def check_answers(trained: Trained, base: Base, folder: Path, tmp_path: Path) -> None:
    """Rollouts, and what evaluations and chats load, end at the same tokens."""
    _, _, stops = expected(base)
    assert set(end_tokens(trained.root.hf, trained.prepared.stop_token_ids)) == stops
    engine = LocalEngine(
        trained.root.hf,
        pad_id=trained.prepared.pad_token_id,
        stop_ids=end_tokens(trained.root.hf, trained.prepared.stop_token_ids),
        rows=2,
    )
    (one,) = engine.generate([Request(tuple(PROMPT), 0, 6)], RolloutSampling(0.0, 1.0, 0))
    assert list(one.tokens) == answer_of(stops, base.writes, 6)
    for at in (folder, base.folder):
        assert set(end_tokens(load_model(at)[0])) == stops
    if prepared_without_copy(trained.checkpoint, tmp_path / "without"):
        assert set(end_tokens(load_model(tmp_path / "without")[0])) == stops


def one_base(seed: int, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", seed)
    kinds: dict[str, AdapterSpec | None] = {"full": None}
    if seed % 2:
        kinds = {"lora": AdapterSpec(r=2, alpha=4.0, target_modules=("q_proj",))}
    for kind, adapter in kinds.items():
        (tmp_path / kind).mkdir()
        trained = Trained(base, tmp_path / kind, adapter)
        export_hf(trained.checkpoint, tmp_path / f"{kind}-out", merge=adapter is not None)
        check(base, tmp_path / f"{kind}-out")
        check_answers(trained, base, tmp_path / f"{kind}-out", tmp_path)
        if adapter is not None:
            export_hf(trained.checkpoint, tmp_path / "peft")
            _check_peft(base, tmp_path / "peft")
    # another program's checkpoint of the same base
    (base.folder / "trainer_state.json").write_text('{"global_step": 1}')
    converted = convert(base.folder, tmp_path / "converted", moments=False).written.path
    export_hf(converted, tmp_path / "converted-out")
    theirs = {p.relative_to(base.folder).as_posix(): p for p in base.folder.rglob("*") if p.is_file()}
    ours = {
        p.relative_to(tmp_path / "converted-out").as_posix() for p in (tmp_path / "converted-out").rglob("*")
    }
    assert {n for n in theirs if n not in LEFT and n != "trainer_state.json"} <= ours


def _check_peft(base: Base, folder: Path) -> None:
    from transformers import AutoTokenizer

    own, saved = (AutoTokenizer.from_pretrained(one) for one in (base.folder, folder))
    assert saved.chat_template == own.chat_template and saved.special_tokens_map == own.special_tokens_map


@pytest.mark.parametrize("seed", DEFAULT_SUITE)
def test_an_export_is_its_base_with_other_weights(seed: int, tmp_path: Path) -> None:
    one_base(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", WHOLE)
def test_an_export_is_its_base_with_other_weights_over_many_bases(seed: int, tmp_path: Path) -> None:
    one_base(seed, tmp_path)


def test_a_model_from_scratch_keeps_the_image_processor_of_its_tokenizers_folder(tmp_path: Path) -> None:
    named, prepared = tmp_path / "named", tmp_path / "prepared"
    for folder in (named, prepared):
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{}")
    (named / "preprocessor_config.json").write_text('{"patch_size": 4}')
    new = ModelSection(config={"model_type": "qwen2_5_vl"}, tokenizer=str(named))
    assert kept_files(new, prepared) == {
        "preprocessor_config.json": b'{"patch_size": 4}',
        "tokenizer.json": b"{}",
    }
