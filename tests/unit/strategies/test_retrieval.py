"""Embedding models and rerankers: from rows to losses and gradients as sentence-transformers has them
(recorded by ``tests/peers/retrieval_losses.py``); the same step under every split of the batch.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_parts import plan
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from paceline.algorithms.supervised.retrieval import Embedding, Reranker
from paceline.config.sections.data import DataSection
from paceline.config.sections.model import ModelSection
from paceline.config.sections.training import TrainingSection
from paceline.core.errors import DataError
from paceline.data.packed_source import PackedSource
from paceline.data.prepare.prepare import Prepared, prepare
from paceline.data.rows.kinds.base import row_kind
from paceline.models.factory import HFModelFactory
from paceline.models.role_module import RoleModule
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan import OptimizerSpec
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import World
from paceline.strategies.registry import make_strategy
from paceline.strategies.window.joint_losses import joint_window
from paceline.strategies.window.runner import make_runner
from paceline.training.evaluation import evaluate
from paceline.training.loop.window_source import BatchLayout, Epochs, WindowSource

RECORDED = json.loads((Path(__file__).parents[2] / "peers/recorded/retrieval.json").read_text("utf-8"))
ENCODERS = ("bert", "xlm-roberta", "modernbert")


def prepared(folder: Path, family: str, rows: list[dict[str, Any]], kind: str, **data: Any) -> Prepared:
    """Rows as the family's tokenizer writes them."""
    name = "encoder" if family in ENCODERS else "decoder"
    types = ["token_type_ids"] if family == "bert" else []
    made = Tokenizer.from_str(json.dumps(RECORDED["tokenizers"][name]))
    special = {"pad_token": "[PAD]", "eos_token": "[SEP]"}
    names = ["input_ids", "attention_mask", *types]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=names, **special)
    tokenizer.save_pretrained(folder / name)
    folder.mkdir(exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    section = DataSection(train=str(path), **{"num_proc": 1, "max_length": 64, **data})  # type: ignore[arg-type]
    model = ModelSection(tokenizer=str(folder / name))
    return prepare(section, model, seed=1, cache_dir=folder / "cache", kind=row_kind(kind))


def source(found: Prepared) -> PackedSource:
    return PackedSource(found.train, seq_len=64, packing=False, seed=3, pad_token_id=0, shuffle=False)


def module_of(family: str, role: Role, **more: Any) -> RoleModule:
    """The model that the script fills."""
    section = ModelSection(config={**RECORDED["configs"][family], **more})
    module = HFModelFactory(section, role, master_dtype=torch.float64, compute_dtype=torch.float64)()
    with torch.no_grad():
        for name, parameter in module.hf.named_parameters():
            places = torch.arange(parameter.numel(), dtype=torch.float64)
            wave = torch.sin(0.37 * places + zlib.crc32(name.encode()) % 1000)
            base = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
            parameter.copy_((base + 0.2 * wave).view_as(parameter))
    return module


def check(module: RoleModule, batch: Batch, algorithm: Any, role: Role, case: Mapping[str, Any]) -> None:
    outputs = module(batch, algorithm.required_outputs(role, training=True))
    (term,) = algorithm.losses(role, outputs, batch).items()
    loss = term[1] / algorithm.weights(batch)[term[0]]
    assert float(loss.detach()) == pytest.approx(case["loss"], rel=1e-6)
    loss.backward()
    for name, (norm, *last) in case["gradients"].items():
        found = module.hf.get_parameter(name).grad
        assert found is not None
        assert float(found.norm()) == pytest.approx(norm, rel=1e-5)
        assert found.flatten()[-len(last) :].tolist() == pytest.approx(last, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("case", RECORDED["embedding"], ids=lambda c: f"{c['family']} {c['loss_type']}")
def test_losses_and_gradients_are_those_of_sentence_transformers(
    case: dict[str, Any], tmp_path: Path
) -> None:
    pairs = case["loss_type"] == "cosine_similarity"
    columns = [*case["columns"], *(["score"] if pairs else [])]
    rows = [{name: row[name] for name in columns} for row in RECORDED["rows"]]
    batch = source(prepared(tmp_path, case["family"], rows, "retrieval")).batch(0, [*range(5), -1])
    algorithm = Embedding(
        loss_type="cosine_similarity" if pairs else "infonce",
        pooling=case["pooling"],
        normalize=case["normalize"],
        symmetric=case["loss_type"] == "symmetric",
    )
    check(module_of(case["family"], Role.EMBEDDING), batch, algorithm, Role.EMBEDDING, case)


@pytest.mark.parametrize("case", RECORDED["reranker"], ids=lambda c: f"{c['family']} {c['loss_type']}")
def test_rerankers_losses_are_those_of_a_cross_encoder(case: dict[str, Any], tmp_path: Path) -> None:
    rows = [{name: row[name] for name in row if name != "score"} for row in RECORDED["rows"]]
    batch = source(prepared(tmp_path, case["family"], rows, "ranked")).batch(0, [*range(5), -1])
    module = module_of(case["family"], Role.REWARD)
    check(module, batch, Reranker(loss_type=case["loss_type"]), Role.REWARD, case)


def test_a_pair_without_a_score_is_named(tmp_path: Path) -> None:
    rows = [{"sentence1": "a b", "sentence2": "c", "score": 0.5}, {"sentence1": "b", "sentence2": "a c"}]
    batch = source(prepared(tmp_path, "llama", rows, "retrieval")).batch(0, [0, 1])
    algorithm = Embedding(loss_type="cosine_similarity")
    outputs = module_of("llama", Role.EMBEDDING)(
        batch, algorithm.required_outputs(Role.EMBEDDING, training=True)
    )
    with pytest.raises(DataError, match=r"embedding\.no_score"):
        algorithm.losses(Role.EMBEDDING, outputs, batch)


def test_rows_of_flag_embedding_are_read_and_no_chat_template_is_made(tmp_path: Path) -> None:
    rows = [{"query": "a b", "pos": ["c"], "neg": ["d", "e a"]}, {"query": "b", "pos": ["a"], "neg": []}]
    found = prepared(tmp_path, "bert", rows, "retrieval")
    assert found.train.columns["part"].tolist() == [0, 1, 2, 2, 0, 1]
    assert [note.code for note in found.notes] == ["data.format"]  # no template, and no end of an answer
    assert not (found.tokenizer_path / "chat_template.jinja").exists()
    ranked = prepared(tmp_path, "bert", rows, "ranked").train.columns
    assert ranked["score"].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(("texts", "repeats"), [("abcd", 0), ("abcb", 1), ("abab", 2), ("abad", 1)])
def test_queries_and_documents_of_several_rows_are_named(texts: str, repeats: int) -> None:
    columns = {"part": [0.0, 1.0] * 2, "score": [math.nan] * 4}
    training = TrainingSection(algorithm="embedding")
    found = list(algorithm_spec("embedding").check_documents(training, columns, texts))
    assert [finding.code for finding in found] == ["retrieval.repeated"] * repeats


class Run:
    """An embedding model with dropout, in float64, on one process, and rows with 0 to 2 negatives."""

    def __init__(self, folder: Path, **options: Any) -> None:
        rows = [
            {
                "anchor": row["query"] + " far" * n,
                "positive": row["positive"],
                "negatives": [row["negative_1"], row["negative_2"]][: (n + k) % 3],
            }
            for n, row in enumerate(RECORDED["rows"])
            for k in range(4)
        ]
        found = prepared(folder, "llama", rows, "retrieval", query_prompt="what is ")
        made = {"seq_len": 64, "packing": False, "seed": 3, "pad_token_id": 0}
        self.rows = PackedSource(found.train, **made)  # type: ignore[arg-type]
        self.held_out = PackedSource(found.train, **made, shuffle=False)  # type: ignore[arg-type]
        self.strategy = make_strategy("single", World.single(), plan())  # type: ignore[arg-type]
        section = ModelSection(config={**RECORDED["configs"]["llama"], "attention_dropout": 0.0})
        kinds: dict[str, Any] = {"compute_dtype": torch.float64, "master_dtype": torch.float64}
        factory = HFModelFactory(section, Role.EMBEDDING, seed=2, **kinds)
        spec = OptimizerSpec(name="sgd", learning_rate=0.1)
        self.handle = self.strategy.prepare(Role.EMBEDDING, factory, spec)
        self.algorithm, self.runner = Embedding(**options), make_runner(self.strategy)

    def step(self, number: int, micro: int) -> Any:
        """One step of 8 rows in micro-batches of ``micro``; its weights are put back."""
        before = {n: p.detach().clone() for n, p in self.handle.root.named_parameters()}
        window = WindowSource(self.rows, BatchLayout(micro, 8 // micro, 0, 1), Epochs((3,), 3), 0).window(
            number
        )
        found = self.runner.train_window(
            {Role.EMBEDDING: self.handle}, window.micro_batches, self.algorithm, lr=0.1, max_grad_norm=1.0
        )
        for name, parameter in self.handle.root.named_parameters():
            parameter.data.copy_(before[name])
        return found


@pytest.mark.parametrize(
    "options", [{}, {"symmetric": True, "pooling": "mean"}, {"in_batch_negatives": False}]
)
def test_a_step_and_an_evaluation_are_the_same_under_every_split(
    options: dict[str, Any], tmp_path: Path
) -> None:
    run = Run(tmp_path, **options)
    for number in (0, 2):  # the last one partly fillers
        whole = run.step(number, 8)
        assert whole.grad_norm and whole.grad_norm > 1e-3
        for micro in (4, 1):
            part = run.step(number, micro)
            assert part.losses == pytest.approx(whole.losses, abs=1e-12) and part.weights == whole.weights
            assert part.grad_norm == pytest.approx(whole.grad_norm, rel=1e-10)
            assert part.extras == pytest.approx(whole.extras, abs=1e-11)
    told = [
        evaluate(
            run.runner, {Role.EMBEDDING: run.handle}, run.algorithm, run.held_out, BatchLayout(m, 1, 0, 1)
        )
        for m in (1, 32)
    ]
    assert told[0] == pytest.approx(told[1], abs=1e-9) and 0 < told[0]["eval_mrr"] <= 1
    assert set(told[0]) >= {"eval_loss", "eval_accuracy", "eval_mrr", "eval_recall_at_10"}


def test_both_forwards_of_a_micro_batch_have_the_same_dropout(tmp_path: Path) -> None:
    """With dropout the step of two micro-batches is that of one graph over both, with the same masks."""
    run = Run(tmp_path)
    run.handle.root.hf.layers[0].mlp.register_forward_hook(
        lambda layer, given, out: torch.nn.functional.dropout(out, 0.5, layer.training)
    )
    window = WindowSource(run.rows, BatchLayout(4, 2, 0, 1), Epochs((3,), 3), 0).window(0)
    asked, handles = (
        run.algorithm.required_outputs(Role.EMBEDDING, training=True),
        {Role.EMBEDDING: run.handle},
    )
    run.handle.root.train()
    vectors = []
    for j, batch in enumerate(window.micro_batches):
        torch.manual_seed(7 + j)
        vectors.append(run.algorithm.vectors(run.handle.root(batch, asked), batch))

    joined = joint_window(run.strategy.world, vectors, window.micro_batches)
    (loss,) = run.algorithm.joint_losses(replace(joined, vectors=torch.cat(vectors))).values()
    (loss / 8).backward()
    expected = math.sqrt(
        sum(float((p.grad**2).sum()) for p in run.handle.root.parameters() if p.grad is not None)
    )
    found = run.runner.train_window(
        handles,
        window.micro_batches,
        run.algorithm,
        lr=0.0,
        max_grad_norm=None,
        generator_seed=lambda j: 7 + j,
    )
    assert found.losses["queries"] == pytest.approx(float(loss.detach()) / 8, abs=1e-12)
    assert found.grad_norm == pytest.approx(expected, rel=1e-10)


def test_prompts_stand_before_queries_and_documents(tmp_path: Path) -> None:
    rows = [{"query": "who", "positive": "far", "negative": "near"}]
    prompts = {"query_prompt": "what is ", "document_prompt": "the "}
    batch = source(prepared(tmp_path, "llama", rows, "retrieval", **prompts)).batch(0, [0])
    told = [{"query": f"what is {r['query']}", "positive": f"the {r['positive']}"} for r in rows]
    told[0]["negative"] = "the near"
    plain = source(prepared(tmp_path / "plain", "llama", told, "retrieval")).batch(0, [0])
    assert batch.input_ids.tolist() == plain.input_ids.tolist()


def test_a_cut_text_keeps_what_the_tokenizer_ends_it_with(tmp_path: Path) -> None:
    long = [{"query": "who " * 40, "positive": "far " * 40}]
    batch = source(prepared(tmp_path, "llama", long, "retrieval", max_length=8)).batch(0, [0])
    assert batch.cu_seqlens.tolist() == [0, 8, 16]
    assert batch.input_ids[0, [7, 15]].tolist() == [2, 2]
