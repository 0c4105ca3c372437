"""Asking a model's class for its parameters: when it is asked, what is kept, what is said where it fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.config.sections.model import ModelSection
from paceline.core.json_types import JsonObject
from paceline.plan.model import parameter_list
from paceline.plan.model.parameter_list import counted, listing_of
from paceline.plan.model.read_config import shape_from_config, shape_of
from paceline.plan.model.shape import EMBEDDING, LINEAR, LayerRun, Listed, Listing
from paceline.plan.plan_json import to_json

MAMBA: JsonObject = {"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 20}
LISTING = Listing(
    "5.0",
    True,
    ((Listed("embed.weight", (20, 8), EMBEDDING),), (Listed("layers.*.in.weight", (30, 8), LINEAR),)),
    (LayerRun(0), LayerRun(1, 0, 2)),
    (0.0, 100.0),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that would have gone to a child."""
    found: list[Any] = []

    def answer(request: Any, environ: Any) -> tuple[Listing, str]:
        found.append(request)
        return LISTING, ""

    monkeypatch.setattr(parameter_list, "query_class", answer)
    return found


def test_a_family_that_a_formula_counts_is_not_asked(asked: list[Any], tmp_path: Path) -> None:
    config: JsonObject = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    shape = shape_from_config(config)
    assert counted(shape, config, {"PACELINE_CACHE": str(tmp_path)}) is shape and not asked
    assert shape_of(ModelSection(config=config), {}, exactly=True) == shape and not asked


def test_an_answer_is_kept_and_a_damaged_one_is_replaced(asked: list[Any], tmp_path: Path) -> None:
    environ = {"PACELINE_CACHE": str(tmp_path)}
    first = listing_of(MAMBA, environ)
    assert first == (LISTING, "") and listing_of(MAMBA, environ) == first and len(asked) == 1
    (record,) = (tmp_path / "parameters").iterdir()
    for damage in ("", "{", '{"tied": 1}', json.dumps({**to_json(LISTING), "runs": [{"tensors": 7}]})):
        record.write_text(damage, encoding="utf-8")
        before = len(asked)
        assert listing_of(MAMBA, environ) == first and len(asked) == before + 1
        assert json.loads(record.read_text(encoding="utf-8")) == json.loads(json.dumps(to_json(LISTING)))
    assert listing_of({**MAMBA, "vocab_size": 30}, environ) == first and len(asked) == before + 2


def test_its_numbers_take_the_formula_s_place(asked: list[Any], tmp_path: Path) -> None:
    about = shape_from_config(MAMBA)
    assert not about.exact and about.heads == 0
    shape = shape_of(ModelSection(config=MAMBA), {"PACELINE_CACHE": str(tmp_path)}, exactly=True)
    assert shape is not None and shape.exact and shape.num_parameters == 20 * 8 + 2 * 30 * 8
    assert shape.matmul_parameters == shape.num_parameters and shape.tied
    assert shape.listing is not None and shape.listing.state_layers == (2, 200.0)


def test_code_of_a_model_is_named_and_its_answer_is_not_kept(asked: list[Any], tmp_path: Path) -> None:
    code: Any = {"name_or_path": "here", "revision": "abc"}
    for _ in range(2):
        assert listing_of(MAMBA, {"PACELINE_CACHE": str(tmp_path)}, code) == (LISTING, "")
    assert asked == [{**code, "trust_remote_code": True}] * 2 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "why"),
    [("paceline.models.no_such_module", "No module named"), ("json.tool", "could not be asked")],
)
def test_where_it_cannot_be_asked_the_formula_s_counts_stay_and_it_is_said(
    module: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_list, "MODULE", module)
    about = shape_from_config(MAMBA)
    shape = counted(about, MAMBA, {"PACELINE_CACHE": str(tmp_path)})
    assert why in shape.why_about and not shape.exact and shape.num_parameters == about.num_parameters
    assert not (tmp_path / "parameters").exists()


def test_without_torch_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_list.util, "find_spec", lambda name: None)
    assert listing_of(MAMBA, {}) == (None, "torch and transformers: not installed here")


@pytest.mark.slow
def test_the_child_answers(tmp_path: Path) -> None:
    before = "transformers" in sys.modules
    found, why = listing_of(MAMBA, {"PACELINE_CACHE": str(tmp_path)})
    assert found is not None, why
    assert found.tied and found.state_layers[0] == 2 and ("transformers" in sys.modules) == before
    missing, why = listing_of({"model_type": "no_such_family"}, {"PACELINE_CACHE": str(tmp_path)})
    assert missing is None and "could not be built" in why
