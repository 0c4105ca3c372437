"""Optimizers, schedules and metrics: what is named is built, takes its options, or is refused where the
file is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION
from transformers.training_args import OptimizerNames

from paceline.config.registries.evaluation_metrics import evaluation_metrics
from paceline.config.registries.lr_schedules import NEEDED, OPTIONS, STATEFUL
from paceline.config.registries.optimizers import BUILT, KNOWN, not_built
from paceline.config.sections.training_steps import SCHEDULES
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import ALGORITHMS, load_attr
from paceline.plan.plan import OptimizerSpec
from paceline.protocols.roles import Output, Role
from paceline.training.loop.lr_schedules import DEEPSPEED, learning_rate_schedule

Refuse = Callable[..., ConfigError]
Load = Callable[..., Any]


def codes(error: ConfigError) -> list[str]:
    return [finding.code for finding in error.diagnostics]


# --- optimizers


def test_the_names_are_those_of_transformers() -> None:
    theirs = {name.value for name in OptimizerNames}
    assert theirs <= {*BUILT, *KNOWN}
    assert not set(BUILT) & set(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_a_name_that_is_not_built_is_refused_with_what_to_write(refuse: Refuse, name: str) -> None:
    error = refuse(f"model: x\ntraining:\n  optim: {name}\n")
    [found] = [f for f in error.diagnostics if f.code == "train.optimizer"]
    why, instead = not_built(name)
    assert "there is no optimizer of this name" not in why
    assert found.where.endswith("config.yaml:3") and name in found.found
    first = found.hint.removeprefix("optim: ").split()[0].rstrip(",;")
    assert first in BUILT, found.hint


#: Arguments of a library's classes that are fixed by the name, without effect, or objects
NOT_OFFERED = {
    "bitsandbytes": {"amsgrad", "optim_bits", "args", "is_paged", "centered"},
    "torchao": {"bf16_stochastic_round"},
}


def needs(name: str) -> None:
    if BUILT[name].package:
        pytest.importorskip(BUILT[name].package)


@pytest.mark.parametrize("name", BUILT)
def test_options_are_those_of_the_class(name: str) -> None:
    needs(name)
    cls = load_attr(BUILT[name].made_by)
    theirs = set(inspect.signature(cls).parameters) - {"params", "lr", "weight_decay"}
    assert set(BUILT[name].options) == theirs - NOT_OFFERED.get(BUILT[name].package, set()) - (
        set() if BUILT[name].quantised else {"min_8bit_size"}
    )
    assert set(BUILT[name].fixed) <= theirs


@pytest.mark.parametrize("name", BUILT)
def test_options_that_pass_build_and_those_that_do_not_are_refused(
    load: Load, refuse: Refuse, name: str
) -> None:
    """Each kind of value that the table takes, the class takes too."""
    import torch

    from paceline.strategies.optimizers.build import build_optimizer

    needs(name)
    samples = {
        "three": (3.0, -4.0, 2.0),
        "number": 0.5,
        "size": 0.25,
        "switch": False,
        "pair": (1e-30, 1e-3),
        "betas": (0.8, 0.9),
        "whole": 128,
        "count": 128,
    }
    for option, kind in BUILT[name].options.items():
        value = kind[0] if isinstance(kind, tuple) else samples[kind]
        constant = "  lr_scheduler_type: constant\n" if BUILT[name].averaged else ""
        load(f"training:\n  optim: {name}\n{constant}  optim_args: {option}={value}\n")
        spec = OptimizerSpec(name=name, args={option: value})
        build_optimizer(spec, [("w", torch.nn.Parameter(torch.ones(2, 2)))])
        wrong = refuse(f"training:\n  optim: {name}\n{constant}  optim_args: {option}=many\n")
        assert codes(wrong) == ["train.optim_args"], option


@pytest.mark.parametrize(
    ("optim", "args"),
    [
        ("sgd", "momentun=0.9"),
        ("sgd", "momentum"),
        ("sgd", "nesterov=True"),
        ("sgd", "momentum=-1"),
        ("adamw_torch", "betas=(0.9, 1.5)"),
        ("adamw_torch_fused", "foreach=True"),
        ("adafactor", "relative_step=True"),
        ("rmsprop", "fused=True"),
        ("adamw_torch", "amsgrad=2"),
    ],
)
def test_slips_in_optim_args(refuse: Refuse, optim: str, args: str) -> None:
    assert codes(refuse(f"training:\n  optim: {optim}\n  optim_args: {args}\n")) == ["train.optim_args"]


def test_a_foreign_file_that_names_one_is_refused_at_its_place(refuse: Refuse, tmp_path: Any) -> None:
    (tmp_path / "ds.json").write_text(
        '{\n "zero_optimization": {"stage": 2},\n "optimizer": {\n  "type": "AdEMAMix"}\n}'
    )
    error = refuse("training:\n  deepspeed: ds.json\n")
    assert codes(error) == ["train.optimizer"]
    assert error.diagnostics[0].where.endswith("ds.json:4"), error.diagnostics[0].render()


def test_transformers_name_in_a_deepspeed_file(refuse: Refuse, tmp_path: Any) -> None:
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2},\n "optimizer": {"type": "ademamix_8bit"}}'
    )
    [found] = refuse("training:\n  deepspeed: ds.json\n").diagnostics
    assert (found.code, found.where.endswith("ds.json:2")) == ("train.optimizer", True)


# --- schedules


def test_schedules_are_those_of_the_library_and_deepspeed() -> None:
    assert set(SCHEDULES) == {*OPTIONS, *STATEFUL}
    assert {name.value for name in TYPE_TO_SCHEDULER_FUNCTION} | set(DEEPSPEED) == {*OPTIONS, *STATEFUL}


@pytest.mark.parametrize("name", OPTIONS)
def test_schedule_options_are_those_of_the_function(name: str) -> None:
    ours = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
    ours |= {"step", "run"}
    function: Any = DEEPSPEED.get(name) or TYPE_TO_SCHEDULER_FUNCTION[name]
    assert set(OPTIONS[name]) == set(inspect.signature(function).parameters) - ours


@pytest.mark.parametrize("name", OPTIONS)
def test_what_the_rules_let_pass_runs(load: Load, name: str) -> None:
    samples = {"number": 1.0, "size": 0.5, "whole": 3, "switch": True}
    needed = {option: 3 if OPTIONS[name][option] == "whole" else 1e-6 for option in NEEDED.get(name, ())[:1]}
    for option, kind in OPTIONS[name].items():
        if (option in NEEDED.get(name, ()) and option not in needed) or option == "num_stable_steps":
            continue  # one of the two; and Transformers warns where it is given beside the steps of the run
        value = kind[0] if isinstance(kind, tuple) else 1e-9 if option == "lr_end" else samples[kind]
        given = {**needed, option: value}
        load(f"training:\n  lr_scheduler_type: {name}\n  lr_scheduler_kwargs: {given}\n")
        assert learning_rate_schedule(name, 1e-3, 2, 10, given)(5) >= 0


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("cosine", "{num_cycls: 2}"),
        ("constant", "{num_cycles: 2}"),
        ("cosine_with_min_lr", "{}"),
        ("cosine_with_min_lr", "{min_lr: 1.0e-6, min_lr_rate: 0.1}"),
        ("warmup_stable_decay", "{}"),
        ("warmup_stable_decay", "{num_decay_steps: 10, decay_type: steep}"),
        ("polynomial", "{lr_end: 1.0}"),
        ("one_cycle", "{}"),
        ("warmup_decay_lr", "{total_num_steps: 0}"),
        ("linear", "{num_cycles: 1}"),
        ("cosine", "{num_cycles: many}"),
        ("warmup_lr", "{warmup_type: cubic}"),
    ],
)
def test_slips_in_lr_scheduler_kwargs(refuse: Refuse, name: str, given: str) -> None:
    error = refuse(f"training:\n  lr_scheduler_type: {name}\n  lr_scheduler_kwargs: {given}\n")
    assert codes(error) == ["train.schedule_options"]


@pytest.mark.parametrize("name", STATEFUL)
def test_schedules_that_follow_losses_are_refused(refuse: Refuse, name: str) -> None:
    error = refuse(
        f"data:\n  eval: e.jsonl\ntraining:\n  lr_scheduler_type: {name}\n  eval_strategy: steps\n"
    )
    assert codes(error) == ["train.schedule"]


# --- metrics


def test_metrics_are_those_of_the_algorithms() -> None:
    for name in ALGORITHMS.names():
        spec, algorithm = ALGORITHMS.spec(name), ALGORITHMS.load(name)()
        told = algorithm.summary({metric.rpartition("/")[0]: 1.0 for metric in algorithm.train_metrics})
        assert spec.on_policy or {f"eval_{metric}" for metric in told} < set(evaluation_metrics(name)), name


def test_a_spec_says_what_the_forward_must_give() -> None:
    for name in ALGORITHMS.names():
        spec, algorithm = ALGORITHMS.spec(name), ALGORITHMS.load(name)()
        asked = [
            algorithm.required_outputs(Role(spec.trains), training=training) for training in (True, False)
        ]
        assert frozenset(map(Output, spec.outputs)) == asked[0] | asked[1], name


@pytest.mark.parametrize(
    ("algorithm", "metric", "fine"),
    [
        ("sft", "rouge1", False),
        ("sft", "loss", True),
        ("sft", "eval_token_accuracy", True),
        ("dpo", "eval_rewards/margins", True),
        ("reward", "rewards/margins", False),
        ("grpo", "eval_loss", False),
        ("grpo", "reward/numeric", True),
        ("ppo", "eval_reward/format", False),
    ],
)
def test_the_metric_that_decides_exists(
    load: Load, refuse: Refuse, algorithm: str, metric: str, fine: bool
) -> None:
    text = f"training:\n  algorithm: {algorithm}\n  metric_for_best_model: {metric}\n"
    text += "  rollout: {rewards: numeric}\n" if algorithm in ("grpo", "ppo") else ""
    if fine:
        load(text)
    else:
        assert codes(refuse(text)) == ["train.best_metric"]
