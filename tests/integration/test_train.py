"""The whole path on real processes: train, stop, resume, fail, evaluate, export."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from support import Run, instruction_rows, run_process, worker_environment, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import CheckpointSaved, Error, Eval, Event, Step, read_events

pytestmark = [pytest.mark.integration]
Tiny = Callable[..., dict[str, Any]]
Paceline = Callable[..., Run]


def events_of(run: Path, rank: int = 0) -> list[Event]:
    return [record.event for record in read_events(RunDir.at(run).events(rank))]


def steps_of(run: Path, rank: int = 0) -> list[Step]:
    return [e for e in events_of(run, rank) if isinstance(e, Step)]


# What Paceline itself writes beside the plan and the steps of a run without fault: findings, and who set the
# threads.
OURS = re.compile(r"(note|warning)\[[a-z]+\.[a-z0-9_]+\] |    (found|hint): |OMP_NUM_THREADS=|$")


def train(
    paceline: Paceline, config: dict[str, Any], folder: Path, nproc: int, *extra: str, **kw: Any
) -> Run:
    yaml = write_yaml(folder / f"config-{nproc}.yaml", config)
    return paceline("train", str(yaml), "--nproc", str(nproc), *extra, **kw)


@pytest.mark.parametrize("several", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_same_losses_on_one_process_and_several(
    several: int, tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    losses, digests, norms = {}, {}, {}
    for nproc, micro, accumulation in ((1, 4, 2), (several, 4 // several, 2)):
        config = tiny(
            output_dir=str(tmp_path / f"run{nproc}"),
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=accumulation,
            max_grad_norm=0.5,
        )
        done = train(paceline, config, tmp_path, nproc)
        assert done.code == 0, done.err
        assert [line for line in done.err.splitlines() if not OURS.match(line)] == []
        steps = steps_of(tmp_path / f"run{nproc}")
        losses[nproc], digests[nproc] = [s.loss for s in steps], [s.sample_digest for s in steps]
        norms[nproc] = [s.grad_norm for s in steps]
    assert losses[1][-1] < losses[1][0] - 0.2  # it learns
    assert max(norms[1]) > 0.5  # clipping is active
    assert digests[several] == digests[1]
    assert losses[several] == pytest.approx(losses[1], abs=2e-6)
    assert norms[several] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.parametrize("nproc", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_resume_is_bit_exact(tiny: Tiny, paceline: Paceline, tmp_path: Path, nproc: int) -> None:
    whole = tiny(
        output_dir=str(tmp_path / "whole"),
        max_steps=12,
        save_strategy="steps",
        save_steps=6,
        warmup_steps=3,
        lr_scheduler_type="cosine",
    )
    assert train(paceline, whole, tmp_path, nproc).code == 0
    part = {
        **whole,
        "training": {
            **whole["training"],
            "output_dir": str(tmp_path / "part"),
            "resume_from_checkpoint": str(tmp_path / "whole/checkpoints/step-00000006"),
            "dataloader_num_workers": 2,  # loaded ahead: the same rows
            "save_steps": 1,  # a save changes nothing of what is trained
            "save_async": True,  # nor does one beside training
        },
    }
    done = train(paceline, part, tmp_path, nproc)
    assert done.code == 0, done.err
    before, after = steps_of(tmp_path / "whole")[6:], steps_of(tmp_path / "part")
    assert [s.step for s in after] == list(range(7, 13))
    assert [(s.loss, s.grad_norm, s.sample_digest, s.lr) for s in after] == [
        (s.loss, s.grad_norm, s.sample_digest, s.lr) for s in before
    ]
    one, other = (tensors_of(tmp_path / name / "checkpoints/step-00000012") for name in ("whole", "part"))
    assert one.keys() == other.keys() and len(one) > 20
    assert [name for name in one if one[name] != other[name]] == []
    for rank in range(nproc):
        saved = [e for e in events_of(tmp_path / "part", rank) if isinstance(e, CheckpointSaved)]
        assert [e.step for e in saved] == [*range(7, 13)] and all(e.waited is not None for e in saved)


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("strategy", ["single", "zero_redundancy", "fsdp", "pipeline", "zero1", "zero3"])
def test_with_saves_is_as_without(
    strategy: str, beside: bool, tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    nproc = 1 if strategy == "single" else 2
    stages = {"parallelism": {"pp_size": 2}} if strategy == "pipeline" else {}
    for name, every in (("often", 1), ("once", 8)):
        config = tiny(
            **stages,
            distributed_strategy=strategy,
            gradient_accumulation_steps=2,
            output_dir=str(tmp_path / name),
            save_strategy="steps",
            save_steps=every,
            save_async=beside and every == 1,
            save_total_limit=1,
        )
        done = train(paceline, config, tmp_path, nproc)
        assert done.code == 0, done.err
    often, once = (steps_of(tmp_path / name) for name in ("often", "once"))
    assert [(s.loss, s.grad_norm) for s in often] == [(s.loss, s.grad_norm) for s in once] and len(once) == 8
    one, other = (tensors_of(tmp_path / name / "checkpoints/step-00000008") for name in ("often", "once"))
    assert one == other and len(one) > 20


def tensors_of(checkpoint: Path) -> dict[str, bytes]:
    """Every tensor of a checkpoint as its bytes."""
    from safetensors import safe_open

    found: dict[str, bytes] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            found.update({name: file.get_tensor(name).tobytes() for name in file.keys()})  # noqa: SIM118
    return found


def start(
    config: dict[str, Any], folder: Path, nproc: int, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    yaml = write_yaml(folder / "background.yaml", config)
    argv = [sys.executable, "-m", "paceline.cli.main", "train", str(yaml), "--nproc", str(nproc)]
    return warm.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=worker_environment(env),
        cwd=folder,
        start_new_session=True,
    )


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str], deadline: float = 240) -> None:
    end = time.monotonic() + deadline
    while time.monotonic() < end and process.poll() is None:
        if RunDir.at(run).events(0).exists() and any(s.step >= step for s in steps_of(run)):
            return
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"step {step} was not reached: {process.communicate()}")


def end(process: subprocess.Popen[str], deadline: float = 240) -> Run:
    try:
        out, err = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"did not end: {out}\n{err}") from None
    return Run(process.returncode, out, err)


def test_sigterm_saves_at_the_next_step_and_resume_goes_on(
    tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    config = tiny(max_steps=100000, save_strategy="steps", save_steps=100000)
    process = start(config, tmp_path, 2)
    wait_for_step(run, 3, process)
    process.send_signal(signal.SIGTERM)
    done = end(process)
    assert done.code == 75, (done.code, done.err)
    last = steps_of(run)[-1].step
    assert (run / f"checkpoints/step-{last:08d}/manifest.json").is_file()
    assert json.loads((run / "result.json").read_text())["outcome"] == "stopped"
    again = tiny(max_steps=100000, save_strategy="steps", save_steps=100000, resume_from_checkpoint="latest")
    process = start(again, tmp_path, 2)
    wait_for_step(run, last + 3, process)
    process.send_signal(signal.SIGTERM)
    assert end(process).code == 75


def test_one_rank_raising_in_a_step_is_named_by_both(tiny: Tiny, paceline: Paceline, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from paceline.strategies.ddp import DDP\n"
        "class Broken(DDP):\n"
        "    steps = 0\n"
        "    def backward(self, *args):\n"
        "        self.steps += 1\n"
        "        if self.world.rank == 1 and self.steps > 3:\n"
        "            raise RuntimeError('the cat sat on rank one')\n"
        "        return super().backward(*args)\n"
    )
    process = start(
        tiny(max_steps=1000, distributed_strategy="broken:Broken"),
        tmp_path,
        2,
        {"PYTHONPATH": f"{tmp_path}:{worker_environment()['PYTHONPATH']}"},
    )
    done = end(process)
    assert done.code == 1, done.err
    assert done.err.count("the cat sat on rank one") >= 1
    for rank in (0, 1):
        errors = [e for e in events_of(tmp_path / "run", rank) if isinstance(e, Error)]
        assert [e.rank for e in errors] == [1] and "the cat sat on rank one" in errors[0].diagnostic.what
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["outcome"] == "failed" and "rank one" in result["diagnostics"][0]["what"]


def test_evaluation_is_exact_for_uneven_sets(tiny: Tiny, paceline: Paceline, tmp_path: Path) -> None:
    """The 99-row case: batch 64, two processes; every row once, the same numbers as one process."""
    rows = tmp_path / "eval.json"
    rows.write_text(json.dumps(instruction_rows(99, seed=5)))
    found = {}
    for nproc in (1, 2):
        config = tiny(
            output_dir=str(tmp_path / f"run{nproc}"),
            max_steps=2,
            per_device_train_batch_size=4 // nproc,
            per_device_eval_batch_size=64,
            eval_strategy="steps",
            eval_steps=1,
            dataloader_num_workers=nproc - 1,
        )
        config["data"]["eval"] = str(rows)
        done = train(paceline, config, tmp_path, nproc)
        assert done.code == 0, done.err
        found[nproc] = [
            {**e.metrics, "rows": e.rows} for e in events_of(tmp_path / f"run{nproc}") if isinstance(e, Eval)
        ]
    for one, two in zip(found[1], found[2], strict=True):
        assert one["rows"] == two["rows"] == 99
        assert two["eval_loss"] == pytest.approx(one["eval_loss"], abs=2e-6)
        assert 0 <= two["eval_token_accuracy"] <= 1
        assert two["eval_token_accuracy"] == pytest.approx(one["eval_token_accuracy"])


def test_early_stopping_keeps_the_best(tiny: Tiny, paceline: Paceline, tmp_path: Path) -> None:
    config = tiny(
        max_steps=200,
        learning_rate=0.5,
        lr_scheduler_type="constant",
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        load_best_model_at_end=True,
        early_stopping_patience=3,
        max_grad_norm=0.0,
    )
    config["data"]["validation_split"] = 0.2
    done = train(paceline, config, tmp_path, 1)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert done.code == 0 and result["outcome"] == "early_stopped", done.err
    said = " ".join(done.out.split())
    assert "of 200: eval_loss has not improved in 3 evaluations (training.early_stopping_patience)" in said
    evals = [e for e in events_of(tmp_path / "run") if isinstance(e, Eval)]
    assert result["best_metric"] == min(e.metrics["eval_loss"] for e in evals)
    assert (tmp_path / f"run/checkpoints/step-{result['best_step']:08d}/manifest.json").is_file()
    assert f"step-{result['best_step']:08d}" in result["checkpoint"]


def test_an_early_stop_writes_nothing_where_saving_is_off(
    tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    """As Transformers' Trainer: its callbacks set should_save by save_strategy alone."""
    config = tiny(
        max_steps=20,
        learning_rate=0.0,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="no",
        early_stopping_patience=1,
    )
    config["data"]["validation_split"] = 0.2
    done = train(paceline, config, tmp_path, 1)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert done.code == 0 and result["outcome"] == "early_stopped", done.err
    assert not result["checkpoint"] and not [*tmp_path.glob("run/checkpoints/step-*")]
    plan = json.loads((tmp_path / "run/plan.json").read_text())
    assert any("early stopping" in decision["reason"] for decision in plan["decisions"])


@pytest.mark.parametrize(
    ("precision", "bound"),
    [("bf16", 5e-2), pytest.param("fp16", 5e-2, marks=pytest.mark.slow)],
)
def test_low_precision_follows_fp32(
    tiny: Tiny, paceline: Paceline, tmp_path: Path, precision: str, bound: float
) -> None:
    losses = {}
    for name in ("no", precision):
        config = tiny(output_dir=str(tmp_path / name), mixed_precision=name, max_steps=10)
        done = train(paceline, config, tmp_path, 2)
        assert done.code == 0, done.err
        losses[name] = [s.loss for s in steps_of(tmp_path / name) if s.skipped is None]
    assert losses[precision][-1] < losses[precision][0] - 0.2
    if precision == "bf16":
        assert losses["bf16"] == pytest.approx(losses["no"], abs=bound)


def test_a_run_is_not_written_over_and_its_export_gives_equal_logits(
    tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from paceline.checkpoint.load.reader import CheckpointReader

    config = tiny(save_strategy="steps", save_steps=4, max_steps=4)
    assert train(paceline, config, tmp_path, 2).code == 0
    again = train(paceline, config, tmp_path, 2)
    assert again.code == 2 and "run.exists" in again.err and "Traceback" not in again.err
    done = paceline("export", str(tmp_path / "run"), "--to", str(tmp_path / "hf"))
    assert done.code == 0, done.err
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    with CheckpointReader(tmp_path / "run/checkpoints/step-00000004") as reader:
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, reader.read("policy", name, "param")), name
    ids = tokenizer("Shout 3: red", return_tensors="pt").input_ids
    assert torch.isfinite(model(ids).logits).all()


def test_module_runs_from_a_checkout(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    done = run_process(
        [
            sys.executable,
            str(root / "main.py"),
            "--mode",
            "train",
            "--config",
            str(tmp_path / "missing.yaml"),
        ],
        60,
        None,
        tmp_path,
    )
    assert done.code == 2 and "missing.yaml" in done.err and "Traceback" not in done.err
