"""What only an import can tell is tried in a process of its own, with an end; its findings are the plan's."""

from __future__ import annotations

import os
import select
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from fault_jobs import Job, tried_here, write_weights

from paceline.config.load import load_config
from paceline.launch.preflight import child_checks
from paceline.plan.needs_trial import (
    ALGORITHM,
    CALLBACKS,
    COMPILE,
    DATASETS,
    EXPORTERS,
    METRICS,
    MODEL,
    REWARDS,
    STRATEGY,
    TOKENIZER,
    TRACKERS,
)
from paceline.training.preflight import trial as trial

REWARDS_OF_MINE = """
import functools
import math
def fine(prompts, completions, answer, **columns): return [1.0 for _ in prompts]
def other(samples): return []
def of_column(completions, question): return [1.0 for _ in completions]
def of_prompt(completions, prompt): return [1.0 for _ in completions]
def of_tests(completions, tests): return [1.0 for _ in completions]
def of_answer(completions, answer): return [1.0 for _ in completions]
def with_option(completions, *, bonus): return [bonus for _ in completions]
NUMBER = 3
async def later(prompts, completions, **columns): return [1.0 for _ in prompts]
class Later:
    async def __call__(self, prompts, completions, **columns): return [1.0 for _ in prompts]
AN_OBJECT, A_PARTIAL = Later(), functools.partial(later, prompts=[])
def asked(row): return {"prompt": row["question_of_mine"], "completion": row["answer_of_mine"]}
def broken(row): return asked({})
def rows(): return [{"prompt": f"Q{n}", "completion": "A"} for n in range(4)]
def no_rows(): raise OSError("gone")
"""
GRPO = {"training.algorithm": "grpo", "data.max_length": 128}


@pytest.fixture
def mine(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    (job.root / "my_rewards.py").write_text(REWARDS_OF_MINE)
    (job.root / "my_broken.py").write_text("import no_such_package_of_mine\n")
    (job.root / "my_syntax.py").write_text("def f(:\n")
    (job.root / "my_exit.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(job.root)
    yield job  # type: ignore[misc]
    for name in ("my_rewards", "my_broken", "my_syntax", "my_exit"):
        sys.modules.pop(name, None)


def tried(job: Job, settings: dict[str, Any], *names: str) -> dict[str, Any]:
    """Code → finding of the tries themselves, in this process."""
    config = load_config(str(job.yaml(settings))).config
    return {d.code: d for name in names for d in trial.try_part(name, config, None)}


@pytest.mark.parametrize(
    ("reward", "code"),
    [
        ("my_rewards:fine", None),
        ("my_rewards:fin", "core.target_attr"),
        ("my_rewardz:fine", "core.target_module"),
        ("my_broken:f", "core.target_module"),
        ("my_syntax:f", "core.target_module"),
        ("my_exit:f", "trial.failed"),
        ("my_rewards:NUMBER", "rewards.not_a_function"),
        ("my_rewards:later", "rewards.not_a_function"),
        ("my_rewards:AN_OBJECT", "rewards.not_a_function"),
        ("my_rewards:A_PARTIAL", "rewards.not_a_function"),
        ("my_rewards:other", "rewards.signature"),
        ("my_rewards:with_option", "rewards.signature"),
    ],
)
def test_a_reward_of_ones_own(mine: Job, reward: str, code: str | None) -> None:
    found = tried(
        mine, {**GRPO, "training.rollout": {"max_completion_length": 32, "rewards": reward}}, REWARDS
    )
    assert set(found) == ({code} if code else set()), found
    assert all(d.where == "training.rollout.rewards" and d.hint for d in found.values())


@pytest.mark.parametrize(
    ("reward", "wrong"),
    [
        ("of_column", ""),
        ("of_prompt", "it needs 'prompt'; columns of data.train: answer, question"),
        ("of_tests", "it needs 'tests'; columns of data.train: answer, question"),
        ("of_answer", "it needs 'answer'; columns of data.eval: question"),
    ],
)
def test_a_reward_needs_columns_that_there_are(mine: Job, reward: str, wrong: str) -> None:
    """What passes is given in the call: the prompt's own column, an answer only where rows have one."""
    (mine.root / "asked.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    (mine.root / "held_out.jsonl").write_text('{"question": "1+1?"}\n')
    rollout = {"max_completion_length": 32, "rewards": f"my_rewards:{reward}"}
    settings = {**GRPO, "training.rollout": rollout, "data.train": str(mine.root / "asked.jsonl")}
    settings |= {"data.eval": str(mine.root / "held_out.jsonl")}
    found = tried(mine, settings, REWARDS).get("rewards.signature")
    assert (found.found.partition(": ")[2] if found else "") == wrong


def test_options_of_a_reward(mine: Job) -> None:
    def found(**options: Any) -> set[str]:
        rewards = [{"name": "my_rewards:with_option", "options": options}]
        return set(
            tried(
                mine, {**GRPO, "training.rollout": {"max_completion_length": 32, "rewards": rewards}}, REWARDS
            )
        )

    assert found(bonus=1) == set()
    assert found(bonus=1, malus=2) == {"rewards.signature"}


def test_compile_backend_and_mode(job: Job) -> None:
    found = tried(
        job,
        {
            "training.torch_compile": True,
            "training.torch_compile_backend": "nosuch",
            "training.torch_compile_mode": "fastest",
        },
        COMPILE,
    )
    assert set(found) == {"train.compile_backend", "train.compile_mode"}
    assert not tried(
        job,
        {
            "training.torch_compile": True,
            "training.torch_compile_backend": "eager",
            "training.torch_compile_mode": "max-autotune",
        },
        COMPILE,
    )


def test_a_strategy_of_ones_own(mine: Job) -> None:
    assert set(tried(mine, {"training.distributed_strategy": "my_rewards:fine"}, STRATEGY)) == {
        "strategy.not_a_strategy"
    }
    assert not tried(mine, {"training.distributed_strategy": "paceline.strategies.ddp:DDP"}, STRATEGY)


STRATEGIES_OF_MINE = """
from paceline.strategies.ddp import DDP
from paceline.strategies.strategy import StepOutcome
from paceline.strategies.window.runner import WindowRunner


class StepsItself(DDP):
    def finish(self, handle, *, lr, max_grad_norm):
        handle.stepper.step()
        return StepOutcome.of(self._grad_norm(handle), None, None)


class StepsAsPaceline(DDP):
    def finish(self, handle, *, lr, max_grad_norm):
        return super().finish(handle, lr=lr / 2, max_grad_norm=max_grad_norm)


class RunsItself(WindowRunner):
    def train_window(self, *arguments, **options):
        raise NotImplementedError


class WithRunner(DDP):
    runner = RunsItself
"""


def test_a_strategy_of_ones_own_that_cannot_leave_out_a_step(mine: Job) -> None:
    """Not at its first step, on every rank."""
    (mine.root / "my_strategies.py").write_text(STRATEGIES_OF_MINE)
    wanted = {"StepsItself": {"strategy.cannot_skip"}, "WithRunner": {"strategy.cannot_skip"}}
    for name in ("StepsItself", "WithRunner", "StepsAsPaceline"):
        named = {"training.distributed_strategy": f"my_strategies:{name}"}
        assert set(tried(mine, {**named, "training.on_spike": "skip"}, STRATEGY)) == wanted.get(name, set())
        assert not tried(mine, named, STRATEGY)
    sys.modules.pop("my_strategies", None)


def test_a_callback_and_a_tracker_of_ones_own(mine: Job) -> None:
    for name, code in (("fine", None), ("NUMBER", "callback.not_one"), ("nobody", "core.target_attr")):
        found = tried(mine, {"training.callbacks": f"my_rewards:{name}"}, CALLBACKS)
        assert set(found) == ({code} if code else set()), found
        assert all(d.where == "training.callbacks" and d.hint for d in found.values())
    for name, code in (("logging:Handler", "tracker.not_one"), ("my_rewards:NUMBER", "tracker.not_one")):
        found = tried(mine, {"training.report_to": name}, TRACKERS)
        assert set(found) == {code} and found[code].where == "training.report_to"


ALGORITHMS_OF_MINE = """
from paceline.plan.algorithms.spec import AlgorithmSpec
NONE = AlgorithmSpec(implementation="pathlib:Path")
MISSING = AlgorithmSpec(implementation="my_rewards:Nobody")
OTHER = AlgorithmSpec(implementation="paceline.algorithms.supervised.sft:SFT", options={"alpha": 1.0})
FINE = AlgorithmSpec(implementation="paceline.algorithms.supervised.sft:SFT")
"""


def test_an_algorithm_of_ones_own(mine: Job) -> None:
    (mine.root / "my_specs.py").write_text(ALGORITHMS_OF_MINE)
    wanted = {
        "NONE": "algorithm.not_an_algorithm",
        "MISSING": "core.target_attr",
        "OTHER": "trial.failed",
        "FINE": None,
    }
    for name, code in wanted.items():
        found = tried(mine, {"training.algorithm": f"my_specs:{name}"}, ALGORITHM)
        assert set(found) == ({code} if code else set()), found
        assert all(d.where == "training.algorithm" for d in found.values())
    for metric in ((), ("training.metric_for_best_model=eval_loss",)):
        found = mine.found({"training.algorithm": "my_specz:SPEC"}, *metric)
        assert found["core.target_module"].where.startswith(str(mine.root)), "the plan's own, at its line"
    sys.modules.pop("my_specs", None)


def _found(job: Job, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The plan's findings with the try of the model's class in this process."""
    tried_here(monkeypatch)
    return job.found(settings)


FSDP = {"launch.nproc": 2, "training.distributed_strategy": "fsdp", "training.fsdp": "full_shard"}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (
            {**FSDP, "training.fsdp_config": {"transformer_layer_cls_to_wrap": "BertLayer"}},
            "strategy.fsdp_wrap_class",
        ),
        (
            {
                **FSDP,
                "training.fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer", "LlamaMPL"]},
            },
            "strategy.fsdp_wrap_class",
        ),
        ({**FSDP, "training.fsdp_config": {"transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}}, None),
        ({"model.attn_implementation": "flashattn9"}, "model.attention"),
        ({"model.attn_implementation": "flex_attention"}, None),
        ({"lora.target_modules": ["c_attn"]}, "models.adapter_targets"),
        (
            {"lora.target_modules": ["q_proj"], "lora.modules_to_save": ["embeddings"]},
            "models.adapter_modules_to_save",
        ),
        ({"lora.target_modules": ["q_proj"], "lora.modules_to_save": ["embed_tokens"]}, None),
    ],
)
def test_the_models_class_is_asked(
    job: Job, settings: dict[str, Any], code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {c for c, d in _found(job, settings, monkeypatch).items() if d.severity.value == "error"}
    assert found == ({code} if code else set())


def test_a_family_that_the_plan_does_not_know_is_asked_too(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family of encoders has no causal model; one with its own positions cannot be cut into stages."""
    import json

    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 320}
    (job.model / "config.json").write_text(json.dumps({"model_type": "vit", **sizes}))
    assert {"plan.family", "models.not_causal"} & set(_found(job, {}, monkeypatch))
    (job.model / "config.json").write_text(
        json.dumps(
            {
                "model_type": "opt",
                "ffn_dim": 64,
                "word_embed_proj_dim": 32,
                "max_position_embeddings": 128,
                **sizes,
            }
        )
    )
    write_weights(job.model)
    stages = {
        "launch.nproc": 2,
        "training.parallelism": {"pp_size": 2},
        "training.distributed_strategy": "pipeline",
    }
    assert "models.no_stages" in _found(job, stages, monkeypatch)


def test_the_process_itself(mine: Job) -> None:
    """Once through: what a try finds is an error at the line of the YAML, and the plan says what was
    tried.
    """
    found = mine.found(
        {**GRPO, "training.rollout": {"max_completion_length": 32, "rewards": "my_rewards:fin"}}
    )
    assert "job.yaml:" in found["core.target_attr"].where
    from paceline.launch.preflight.load_config import load
    from paceline.launch.preflight.plan_job import planned

    loaded = load(
        mine.yaml({**GRPO, "training.rollout": {"max_completion_length": 32, "rewards": "my_rewards:fine"}}),
        [],
    )
    for imports, choice in ((True, "tried"), (False, "not tried")):
        plan, _ = planned(loaded, imports=imports)
        [said] = [d for d in plan.decisions if d.subject == "imports"]
        assert (said.choice, said.granted) == (choice, imports) and "my_rewards:fine" in said.reason
        assert imports or "--no-imports" in said.reason


def test_a_try_that_does_not_end_is_ended(mine: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine.root / "my_slow.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.setattr(child_checks, "SECONDS", 15.0)  # the imports before it take 4
    found = mine.found({**GRPO, "training.rollout": {"max_completion_length": 32, "rewards": "my_slow:f"}})[
        "trial.unfinished"
    ]
    assert found.severity.value == "warning" and REWARDS in found.what and "15 s" in found.found


def test_a_try_that_dies_is_told(mine: Job) -> None:
    (mine.root / "my_death.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    found = mine.found({**GRPO, "training.rollout": {"max_completion_length": 32, "rewards": "my_death:f"}})[
        "trial.unfinished"
    ]
    assert "-9" in found.found and REWARDS in found.what


@pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel's signal to a child whose parent died is Linux's"
)
def test_nothing_is_left_of_a_plan_that_is_killed(tmp_path: Path) -> None:
    """Between the start of the process and the wait for it nobody else would end it."""
    import subprocess

    (tmp_path / "waits.py").write_text("import threading\nthreading.Event().wait()\n")
    code = (
        "from paceline.launch.child import started_child as started; import os;"
        " print(started(None, 'waits').pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    pid = int(done.stdout)
    opened = os.pidfd_open(pid) if Path(f"/proc/{pid}").exists() else None
    if opened is not None:  # it ends by the kernel's signal, and nobody else's
        assert select.select([opened], [], [], 30)[0]
        os.close(opened)


def test_rows_and_exporters_of_ones_own(mine: Job) -> None:
    rows = mine.root / "asked.jsonl"
    rows.write_text('{"question_of_mine": "Q", "answer_of_mine": "A"}\n' * 3)
    for settings, code, where in (
        ({"data.train": str(rows), "data.converter": "my_rewards:asked"}, None, ""),
        ({"data.train": str(rows), "data.converter": "my_rewards:aksed"}, "core.target_attr", "data.train"),
        ({"data.train": str(rows), "data.converter": "my_rewards:NUMBER"}, "data.own_rows", "data.train"),
        ({"data.train": str(rows), "data.converter": "my_rewards:broken"}, "data.converter", "data.train"),
        ({"data.train": "my_rewards:rows"}, None, ""),
        ({"data.train": "my_rewards:no_rows"}, "data.own_rows", "data.train"),
    ):
        config = load_config(str(mine.yaml(settings))).config
        job = {"config": config.to_json(), "plan": None, "tries": [], "doubt": None}
        *_, reply = trial.answers({**job, "imports": True, "open": True})  # type: ignore[typeddict-item]
        assert reply["asked"][DATASETS] and not [d for d in reply["looked"] if d["code"].startswith("data.")]
        found = {d["code"]: d for one in reply["tried"] if one["name"] == DATASETS for d in one["found"]}
        assert set(found) == ({code} if code else set()), found
        assert not code or found[code]["where"] == where
    assert set(tried(mine, {"training.exporters": "my_rewards:NUMBER"}, EXPORTERS)) == {"export.exporter"}
    assert not tried(mine, {"training.exporters": "my_rewards:fine, gguf"}, EXPORTERS)


def test_every_try_has_a_key_and_a_function() -> None:
    own = {ALGORITHM, REWARDS, STRATEGY, CALLBACKS, TRACKERS, METRICS, EXPORTERS}
    assert set(trial._KEYS) == {*own, COMPILE, MODEL, TOKENIZER, DATASETS}
    assert isinstance(trial, types.ModuleType) and Path(trial.__file__ or "").is_file()
