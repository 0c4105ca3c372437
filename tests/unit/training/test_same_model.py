"""What a run adds to an adapter by itself is no change of the config."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.plan.model.family import Family
from paceline.plan.plan import AdapterSpec, OptimizerSpec
from paceline.training.checkpointing.resume_compatibility import other_training


def codes(saved: list[str] | None, asked: tuple[str, ...], *, tied: bool) -> list[str]:
    """Findings of a resume under ``lora.modules_to_save: asked`` from an adapter that was saved with
    ``saved``.
    """
    plan = SimpleNamespace(
        algorithm="reward",
        optimizer=OptimizerSpec(),
        adapter=AdapterSpec(4, 8.0, modules_to_save=asked),
        shape=SimpleNamespace(tied=tied, family=Family()),
    )
    state = {"adapter": {"r": 4, "alpha": 8.0, "modules_to_save": saved}}
    return [d.code for d in other_training(state, plan, {})]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("saved", "asked", "tied"),
    [
        (["score"], (), False),  # a reward model's fresh head
        (["embed_tokens", "lm_head"], ("lm_head",), True),
        (["lm_head"], ("lm_head",), True),
        (None, (), False),
    ],
)
def test_what_the_run_adds_by_itself_is_the_same(
    saved: list[str] | None, asked: tuple[str, ...], tied: bool
) -> None:
    assert codes(saved, asked, tied=tied) == []


@pytest.mark.parametrize(
    ("saved", "asked", "tied"),
    [
        (["lm_head", "score"], (), False),
        (["embed_tokens", "lm_head"], ("lm_head",), False),
        (["score"], ("lm_head",), False),
        (["embed_tokens"], (), True),
    ],
)
def test_another_module_is_another_adapter(saved: list[str], asked: tuple[str, ...], tied: bool) -> None:
    assert codes(saved, asked, tied=tied) == ["resume.adapter"]
