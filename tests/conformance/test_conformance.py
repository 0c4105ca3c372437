"""A pairwise choice of the support matrix through the real worker; all of it: ``make conformance``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cells import (
    FINETUNING,
    LARGER,
    PRECISIONS,
    REFERENCE_FREE,
    VARIANTS,
    Cell,
    Variant,
    blooms,
    encoders,
    every,
    layers,
    matrix,
    mixtures,
)
from check import Checker
from support import write_classified, write_rows, write_tokenizer
from table import SUPPORT_MD, load, markdown

from paceline.core.plugins.tables import STRATEGIES
from paceline.plan.strategies.spec import strategy_spec

pytestmark = [pytest.mark.integration]
BY_NAME = {v.name: v for v in VARIANTS}
# every kind of training and each precision through training, resume and export; ``--slow`` takes the second
# list too. The fast tier has the checker itself, on a strategy of a user's own.
PAIRWISE = [
    ("fsdp full_shard", "LoRA", "bf16"),
    ("ddp", "QLoRA", "bf16"),
]
MORE = [
    ("ZeRO-3", "LoRA", "fp32"),
    ("pipeline interleaved", "full", "fp64"),
    ("fsdp hybrid_shard (2 × 2)", "full", "fp32"),
    ("tp, sequence parallel", "full", "bf16"),
    ("cp ulysses", "full", "fp64"),
    ("tp × fsdp", "full", "fp32"),
    ("ZeRO-1", "QLoRA", "fp32"),
    ("tp × fsdp", "LoRA", "fp32"),
    ("AutoTP + ZeRO-1", "LoRA", "fp32"),
    ("ZeRO-2", "QLoRA", "fp32"),
    ("ZeRO-3, CPU offload", "full", "bf16"),
    ("DeepSpeed Ulysses", "full", "bf16"),
]
CELLS = [
    *(pytest.param(*cell, marks=pytest.mark.full) for cell in PAIRWISE),
    *(pytest.param(*cell, marks=pytest.mark.slow) for cell in MORE),
]


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checker]:
    folder = tmp_path_factory.mktemp("conformance")
    yield Checker(
        folder,
        write_tokenizer(folder / "tokenizer"),
        {
            "documents": write_rows(folder / "train.json", 200),
            "classified": write_classified(folder / "classified.json", 200),
        },
    )


@pytest.mark.parametrize(
    "name, finetuning, precision", CELLS, ids=[" ".join(cell) for cell in [*PAIRWISE, *MORE]]
)
def test_cell(checker: Checker, name: str, finetuning: str, precision: str) -> None:
    result = checker.check(Cell(BY_NAME[name], finetuning, precision))
    assert result.result == "works", result.reason


@pytest.mark.parametrize(
    "name, finetuning, precision",
    [
        pytest.param("ddp", "full", "fp32", marks=pytest.mark.full),
        pytest.param("fsdp full_shard", "full", "fp64", marks=pytest.mark.slow),
        pytest.param("fsdp full_shard", "LoRA", "fp32", marks=pytest.mark.slow),
        pytest.param("ZeRO-3", "full", "fp32", marks=pytest.mark.slow),
        pytest.param("ZeRO-3", "LoRA", "fp32", marks=pytest.mark.slow),
    ],
)
def test_distillation_on_the_students_own_answers(
    checker: Checker, name: str, finetuning: str, precision: str
) -> None:
    result = checker.check(Cell(BY_NAME[name], finetuning, precision, "distillation, own answers"))
    assert result.result == "works", result.reason


@pytest.mark.full
def test_an_encoder_is_trained_in_parts(checker: Checker) -> None:
    result = checker.check(Cell(BY_NAME["fsdp full_shard"], "full", "fp32", "classification, BERT"))
    assert result.result == "works", result.reason


def test_a_strategy_of_a_users_own_holds_the_suite(checker: Checker) -> None:
    own = BY_NAME["a user's own (module:Class)"]
    result = checker.check(Cell(own))
    assert result.result == "works", result.reason


@pytest.mark.parametrize(
    "name, said",
    [
        ("Swapped", "training.weights_differ"),  # by the program itself, after its first step
        pytest.param("Forgetful", "training.weights_differ", marks=pytest.mark.slow),
        pytest.param("Halved", "further from one process", marks=pytest.mark.full),
    ],
)
def test_a_strategy_that_is_wrong_fails_the_suite(checker: Checker, name: str, said: str) -> None:
    result = checker.check(Cell(Variant(name, {"distributed_strategy": f"wrong_strategy:{name}"})))
    assert result.result == "fails" and said in result.reason, result.reason


def test_the_matrix_is_whole_and_the_page_is_made_from_it() -> None:
    support = load()
    run = {c["cell"] for c in support["cells"]}
    assert {c.name for c in every()} == run
    assert len(matrix()) == len(VARIANTS) * len(FINETUNING) * (len(PRECISIONS) - 1)
    assert {v.nproc for v in (*VARIANTS, *LARGER)} == {1, 2, 4, 8}
    assert SUPPORT_MD.read_text(encoding="utf-8") == markdown(support)
    assert not [c["cell"] for c in support["cells"] if c["result"] == "fails"]


def test_every_strategy_of_the_table_has_a_cell() -> None:
    run = {strategy_spec(str(v.training["distributed_strategy"])).engine_name for v in VARIANTS}
    assert {strategy_spec(name).engine_name for name in STRATEGIES.names()} <= run


def test_the_cells_that_must_work_do() -> None:
    works = {
        tuple(c[k] for k in ("algorithm", "strategy", "finetuning", "precision"))
        for c in load()["cells"]
        if c["result"] == "works"
    }
    must = {
        ("sft", name, kind, p) for name in MUST_ADAPT for kind in ("full", "LoRA") for p in ("fp32", "bf16")
    }
    must |= {("sft", name, "full", p) for name in MUST_FULL for p in ("fp32", "bf16")}
    must |= {
        ("sft", name, "QLoRA", p)
        for name in ("single", "ddp", "fsdp full_shard", "ZeRO-2")
        for p in ("fp32", "bf16")
    }
    others = (
        "reward",
        "dpo",
        "kto",
        "grpo",
        "ppo",
        "rloo",
        "reinforce_plus_plus",
        "distillation",
        "classification",
        *REFERENCE_FREE,
    )
    must |= {(a, name, kind, "fp32") for a in others for name in MUST_LEARN for kind in ("full", "LoRA")}
    must |= {
        (a, name, kind, "fp64")
        for a in others
        for name in ("ddp", "zero_redundancy", "fsdp full_shard")
        for kind in ("full", "LoRA")
    }
    must |= {(a, "tp", "full", p) for a in ("dpo", "kto", "grpo") for p in ("fp32", "fp64")}
    must |= {(a, "tp", "LoRA", p) for a in ("dpo", "grpo") for p in ("fp32", "fp64")}
    must |= {("dpo", name, "QLoRA", "fp32") for name in ("single", "ddp", "fsdp full_shard")}
    must |= {(c.algorithm, c.variant.name, c.finetuning, c.precision) for c in (*layers(), *blooms())}
    must |= {(c.algorithm, c.variant.name, c.finetuning, c.precision) for c in encoders()[:5]}
    must |= {
        (c.algorithm, c.variant.name, c.finetuning, c.precision)
        for c in mixtures()
        if c.variant.name in MUST_LEARN
    }
    assert sorted(must - works) == []


MUST_LEARN = ("single", "ddp", "zero_redundancy", "fsdp full_shard", "ZeRO-1", "ZeRO-2", "ZeRO-3")
MUST_ADAPT = (
    "single",
    "ddp",
    "zero_redundancy",
    "fsdp full_shard",
    "fsdp shard_grad_op",
    "fsdp hybrid_shard (2 × 2)",
    "tp",
    "tp, sequence parallel",
    "tp × fsdp",
    "ZeRO-1",
    "ZeRO-2",
    "ZeRO-3",
    "ZeRO-3, CPU offload",
    "AutoTP + ZeRO-1",
)
MUST_FULL = (
    "tp",
    "tp, sequence parallel",
    "cp ulysses",
    "cp all-gather",
    "pipeline 1f1b",
    "pipeline interleaved",
    "tp × fsdp",
    "pp × fsdp",
    "pp × tp × fsdp",
    "AutoTP + ZeRO-1",
    "DeepSpeed Ulysses",
    "ZeRO-3, NVMe offload",
    "data_parallel (one device)",
)
