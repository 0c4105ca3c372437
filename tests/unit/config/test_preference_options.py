"""Options of reward models and DPO as TRL, LLaMA-Factory and axolotl write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.config.load import load_config
from paceline.config.schema import Config
from paceline.core.errors import ConfigError


def load(tmp_path: Path, values: dict[str, Any]) -> Config:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return load_config(str(path)).config


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ({"loss_type": ["sigmoid"]}, {"loss_type": "sigmoid", "rpo_alpha": None}),
        ({"loss_type": "sigmoid_norm"}, {"loss_type": "sigmoid", "length_normalized": True}),
        ({"loss_type": ["sigmoid", "sft"]}, {"loss_type": "sigmoid", "rpo_alpha": 1.0}),
        (
            {"loss_type": ["hinge", "sft"], "loss_weights": [1.0, 0.25]},
            {"loss_type": "hinge", "rpo_alpha": 0.25},
        ),
        (
            {"loss_type": ["sft", "sigmoid_norm"], "loss_weights": [2, 1]},
            {"length_normalized": True, "rpo_alpha": 2.0},
        ),
        ({"beta": "1e-1", "label_smoothing": 0.1}, {"beta": 0.1, "label_smoothing": 0.1}),
    ],
)
def test_trl_s_options_of_dpo(tmp_path: Path, written: dict[str, Any], found: dict[str, Any]) -> None:
    config = load(tmp_path, {"training": {"algorithm": "dpo", "dpo": written}})
    options = config.to_json()["training"]["dpo"]
    assert {name: options[name] for name in found} == found and options["loss_weights"] is None
    assert Config.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    "written",
    [
        {"loss_type": ["sigmoid", "hinge"]},
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [0.8, 0.2]},
        {"loss_type": ["sigmoid"], "loss_weights": [1.0, 0.2]},
        {"loss_type": "kto_pair"},
        {"loss_weights": [1.0]},
        {"loss_type": [["sigmoid"]], "loss_weights": ["a"]},
        {"label_smoothing": 0.5},
        {"beta": 0},
    ],
)
def test_what_no_loss_is_made_of_is_refused(tmp_path: Path, written: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="training.dpo"):
        load(tmp_path, {"training": {"algorithm": "dpo", "dpo": written}})


def test_other_systems_names(tmp_path: Path) -> None:
    flat = {
        "stage": "dpo",
        "pref_beta": 0.2,
        "pref_loss": "ipo",
        "pref_ftx": 0.5,
        "ref_model": "m",
        "precompute_ref_log_probs": True,
    }
    training = load(tmp_path, flat).training
    assert training.algorithm == "dpo" and training.dpo is not None
    options = training.dpo
    assert (options.beta, options.loss_type, options.rpo_alpha, options.ref_model) == (0.2, "ipo", 0.5, "m")
    assert options.precompute_ref_log_probs
    reward = load(tmp_path, {"stage": "rm", "center_rewards_coefficient": 0.01}).training
    assert reward.algorithm == "reward" and reward.reward is not None
    assert reward.reward.center_rewards_coefficient == 0.01
    rollouts = load(tmp_path, {"stage": "grpo", "ref_model": "m", "pref_beta": 0.3}).training
    assert rollouts.grpo is not None and (rollouts.grpo.ref_model, rollouts.grpo.beta, rollouts.dpo) == (
        "m",
        0.3,
        None,
    )
    assert load(tmp_path, {"training": {"ref_model": "m"}}).training.dpo is not None, (
        "named where nobody else has it"
    )
    flat = {
        "stage": "kto",
        "pref_beta": 0.2,
        "kto_chosen_weight": 2,
        "kto_rejected_weight": 0.5,
        "ref_model": "m",
    }
    kto = load(tmp_path, flat).training.model_dump()
    assert kto["algorithm"] == "kto" and kto["dpo"] is None
    assert kto["kto"] == {
        "beta": 0.2,
        "loss_type": "kto",
        "desirable_weight": 2.0,
        "undesirable_weight": 0.5,
        "ref_model": "m",
    }
    axolotl = load(
        tmp_path, {"algorithm": "kto", "rl_beta": 0.3, "kto_undesirable_weight": 0.4}
    ).training.model_dump()
    assert (axolotl["kto"]["beta"], axolotl["kto"]["undesirable_weight"]) == (0.3, 0.4)
    with pytest.raises(ConfigError, match="stage: kto"):
        load(tmp_path, {"stage": "dpo", "pref_loss": "kto_pair"})


def test_a_loss_of_llama_factory_that_is_an_algorithm_here(tmp_path: Path) -> None:
    """``stage: dpo`` with ``pref_loss: simpo`` or ``orpo``: the algorithm, and the options beside it in
    its section.
    """
    flat = {"stage": "dpo", "pref_loss": "simpo", "pref_beta": 2.0, "simpo_gamma": 1.2, "pref_ftx": 0.3}
    training = load(tmp_path, flat).training
    assert (training.algorithm, training.dpo, training.cpo) == (
        "simpo",
        None,
        None,
    ) and training.simpo is not None
    options = training.simpo
    assert (options.beta, options.simpo_gamma, options.cpo_alpha) == (2.0, 1.2, 0.3)
    training = load(tmp_path, {"pref_loss": "orpo", "pref_beta": 0.3}).training
    assert training.algorithm == "orpo" and training.orpo is not None and training.orpo.beta == 0.3
    training = load(
        tmp_path,
        {
            "training": {
                "algorithm": "cpo",
                "cpo_alpha": 0.5,
                "simpo_gamma": 0.4,
                "cpo": {"loss_type": "simpo"},
            }
        },
    ).training
    assert training.cpo is not None and (training.cpo.cpo_alpha, training.cpo.simpo_gamma) == (0.5, 0.4)
    with pytest.raises(ConfigError, match=r"training\.algorithm is given two different values"):
        load(tmp_path, {"stage": "sft", "pref_loss": "orpo"})
