"""A checkpoint that cannot be gone on from, or is of another run: said by ``plan``, each with what to
write, or allowed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_jobs import LLAMA, Job
from saved_jobs import SHARD, in_this_process, save, write_manifest
from support import write_rows, write_tokenizer

from paceline.checkpoint.format.manifest import VERSION
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.launch.preflight.child_checks import check_bytes

RESUME = "training.resume_from_checkpoint"
Settings = dict[str, Any]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


def wrong(found: dict[str, Diagnostic]) -> set[str]:
    return {code for code, d in found.items() if d.severity.value == "error"}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _json(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def _of_another_save(folder: Path) -> None:
    _json(folder / "state.json", world_size=4)
    write_manifest(folder, 2)


HARMS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file cut": (lambda c: (c / SHARD).write_bytes((c / SHARD).read_bytes()[:-1]), "checkpoint.damaged"),
    "a small file flipped": (lambda c: flip(c / "hf" / "config.json"), "checkpoint.damaged"),
    "a file gone": (lambda c: (c / SHARD).unlink(), "checkpoint.incomplete"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "checkpoint.incomplete"),
    "a pickle beside": (lambda c: (c / "optimizer.pt").write_bytes(b"x"), "checkpoint.foreign_file"),
    "a manifest cut": (lambda c: (c / "manifest.json").write_text("{"), "checkpoint.json"),
    "a manifest changed": (lambda c: _json(c / "manifest.json", step=3), "checkpoint.manifest"),
    "a state of another save": (_of_another_save, "checkpoint.misplaced"),
    "a manifest of another step": (lambda c: write_manifest(c, 7), "checkpoint.misplaced"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_checkpoint_is_named_by_plan(job: Job, harm: str) -> None:
    folder = save(job)
    do, code = HARMS[harm]
    do(folder)
    found = job.found({RESUME: str(folder)})
    assert wrong(found) == {code}, {c: d.render() for c, d in found.items()}
    assert found[code].where.startswith(str(job.root / "job.yaml:")) and str(folder) in found[code].found
    found = job.found({RESUME: "latest"})
    assert wrong(found) == {"resume.only_incomplete"} and found["resume.only_incomplete"].hint


def test_a_best_checkpoint_that_is_gone_is_named_before_the_start(job: Job) -> None:
    """In the run's folder or beside what is resumed from it is found; without the wish nobody asks."""
    best = {"training.load_best_model_at_end": True, "training.save_strategy": "best"}
    ask = {
        **best,
        "training.eval_strategy": "steps",
        "training.eval_steps": 1,
        "data.eval": str(job.root / "rows.json"),
    }
    folder = save(job, step=2, best=1)
    found = job.found({**ask, RESUME: str(folder)})
    assert (
        "training.best_checkpoint" in wrong(found)
        and "step-00000001" in found["training.best_checkpoint"].found
    )
    assert "training.best_checkpoint" not in wrong(job.found({RESUME: str(folder)}))
    save(job, step=1)
    assert "training.best_checkpoint" not in wrong(job.found({**ask, RESUME: str(folder)}))


def test_a_newer_manifest_is_named_as_newer(job: Job) -> None:
    folder = save(job)
    _json(folder / "manifest.json", version=VERSION + 1)
    newer = f"version {VERSION + 1}"
    for where in (str(folder), "latest"):
        found = job.found({RESUME: where})
        assert wrong(found) == {"checkpoint.newer"} and newer in found["checkpoint.newer"].found


def test_a_flipped_weight_is_named_before_a_process_starts(job: Job) -> None:
    """``plan`` compares sizes, since it must be quick, and says so; ``train`` reads every byte before its
    ranks start.
    """
    folder = save(job)
    flip(folder / SHARD)
    found = job.found({RESUME: str(folder)})
    assert wrong(found) == set() and "before it starts a process" in found["resume.chosen"].found


def test_train_reads_every_byte_and_starts_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.cli.start import start
    from paceline.launch import start_run as launching
    from paceline.launch.process_spec import LaunchOptions

    folder = save(job)
    flip(folder / SHARD)
    monkeypatch.setattr(launching, "launch", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(ConfigError, match=r"checkpoint\.damaged\] .*job\.yaml:\d+: '" + SHARD):
        start(job.yaml({RESUME: str(folder)}), (), LaunchOptions())
    save(job, step=1)
    check_bytes("latest", RunDir.at(job.root / "run"))  # falls back to the step before


LORA = {"lora.r": 2}
LAYERS = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
SIZES = {key: value for key, value in LLAMA.items() if key != "vocab_size"}
DRAWN = {
    "model.name_or_path": None,
    "model.tokenizer": "models/llama",
    "model.config": {**SIZES, "vocab_size": 2000},
}
PAIRS = [{"prompt": f"say {i}", "chosen": "b", "rejected": "c"} for i in range(8)]
CHANGES: list[tuple[str, Settings, Settings, str, str]] = [
    ("data", {}, {"data.train": "rows2.json"}, "checkpoint.other_run", "data.train"),
    ("tokenizer", {}, {"model.tokenizer": "tokenizer2"}, "checkpoint.other_run", "data.train"),
    (
        "batch",
        {},
        {"training.per_device_train_batch_size": 4},
        "checkpoint.other_run",
        "training.per_device_train_batch_size",
    ),
    (
        "accumulation",
        {},
        {"training.gradient_accumulation_steps": 3},
        "checkpoint.other_run",
        "training.per_device_train_batch_size",
    ),
    ("length", {}, {"data.max_length": 48}, "checkpoint.other_run", "data.max_length"),
    ("seed", {}, {"training.seed": 5}, "checkpoint.other_run", "training.seed"),
    ("packing", {}, {"data.packing": False}, "checkpoint.other_run", "data.packing"),
    (
        "algorithm",
        {"training.algorithm": "dpo", "data.train": "pairs.json"},
        {"training.algorithm": "reward"},
        "resume.other_algorithm",
        "training.algorithm",
    ),
    ("optimizer", {}, {"training.optim": "adafactor"}, "resume.other_optimizer", "training.optim"),
    (
        "optimizer's options",
        {},
        {"training.optim_args": "amsgrad=true"},
        "resume.other_optimizer",
        "training.optim",
    ),
    ("sizes", {}, {"model.name_or_path": "models/smaller"}, "resume.other_model", "model.name_or_path"),
    ("an adapter now", {}, LORA, "resume.adapter", "lora"),
    ("no adapter now", LORA, {"lora.r": None}, "resume.adapter", "lora"),
    ("rank", LORA, {"lora.r": 4}, "resume.adapter", "lora.r"),
    ("scale", LORA, {"lora.alpha": 16}, "resume.adapter", "lora.alpha"),
    (
        "layers of the adapter",
        LORA,
        {"lora.target_modules": ["q_proj"]},
        "resume.adapter",
        "lora.target_modules",
    ),
]


@pytest.fixture
def more(job: Job, tmp_path: Path) -> Job:
    """With other rows, pairs, another tokenizer and a model of fewer layers beside."""
    write_rows(job.root / "rows2.json", 5)
    (job.root / "pairs.json").write_text(json.dumps(PAIRS))
    tokenizer = write_tokenizer(job.root / "tokenizer2")
    _json(tokenizer / "tokenizer_config.json", eos_token="<|user|>")
    smaller = job.root / "models" / "smaller"
    smaller.mkdir()
    for file in job.model.iterdir():
        (smaller / file.name).write_bytes(file.read_bytes())
    _json(smaller / "config.json", num_hidden_layers=2)
    return job


@pytest.mark.parametrize(
    ("before", "change", "code", "key"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_what_a_resume_may_not_change_is_said_by_plan(
    more: Job, before: Settings, change: Settings, code: str, key: str
) -> None:
    folder = save(more, before)
    settings = {k: v for k, v in {**before, **change}.items() if v is not None}
    assert wrong(more.found({**before, RESUME: str(folder)})) == set()
    found = more.found({**settings, RESUME: str(folder)})
    assert wrong(found) == {code}, {c: d.render() for c, d in found.items()}
    line = more.yaml({**settings, RESUME: str(folder)}).read_text().splitlines()
    place = found[code].where
    if key in {**settings}:
        assert key.rpartition(".")[2] in line[int(place.rpartition(":")[2]) - 1], place
    assert found[code].hint and " in the checkpoint" in found[code].found or code == "resume.adapter"


def test_rows_of_a_drawn_model_stay(job: Job) -> None:
    """Without a size of its own it takes the tokenizer's; before this release it took its family's."""
    folder = save(job, DRAWN)
    assert wrong(job.found({**DRAWN, RESUME: str(folder)})) == set()
    found = job.found({**DRAWN, "model.config": SIZES, RESUME: str(folder)})
    assert wrong(found) == {"resume.other_model"}
    assert found["resume.other_model"].hint.startswith("vocab_size: 2000 in model.config")


ALLOWED: list[tuple[str, Settings, Settings]] = [
    ("the same layers by their ends", LORA, {"lora.target_modules": LAYERS}),
    ("the same layers by a pattern", LORA, {"lora.target_modules": r".*\.(q|k|v|o|gate|up|down)_proj"}),
    ("the same layers by one word", {**LORA, "lora.target_modules": LAYERS}, {"lora.target_modules": None}),
    ("more steps", {}, {"training.max_steps": 9}),
    ("another rate", {}, {"training.learning_rate": 1e-6}),
    ("the same update by another kernel", {}, {"training.optim": "adamw_torch"}),
    ("evaluation begun", {}, {"data.eval": "rows2.json", "training.eval_strategy": "steps"}),
    (
        "evaluation left out",
        {"data.eval": "rows2.json", "training.eval_strategy": "steps"},
        {"data.eval": None, "training.eval_strategy": "no"},
    ),
    (
        "rows a micro-batch with as many a step",
        {"training.per_device_train_batch_size": 4},
        {"training.per_device_train_batch_size": 2, "training.gradient_accumulation_steps": 2},
    ),
    ("dropout of the adapter", LORA, {"lora.dropout": 0.1}),
]


@pytest.mark.parametrize(("before", "change"), [c[1:] for c in ALLOWED], ids=[c[0] for c in ALLOWED])
def test_what_a_resume_may_change(more: Job, before: Settings, change: Settings) -> None:
    folder = save(more, before)
    settings = {k: v for k, v in {**before, **change}.items() if v is not None}
    assert wrong(more.found({**settings, RESUME: str(folder)})) == set()


def test_latest_without_the_evaluation_set_that_was_there(more: Job) -> None:
    """The file is gone: named as such with its line; with the key left out the run goes on."""
    before = {"data.eval": "rows2.json", "training.eval_strategy": "steps"}
    save(more, before)
    (more.root / "rows2.json").unlink()
    found = more.found({**before, RESUME: "latest"})
    assert wrong(found) == {"data.missing"} and "rows2.json" in found["data.missing"].render()
    assert wrong(more.found({RESUME: "latest"})) == set()


def test_a_link_to_a_checkpoint_is_taken_and_said(job: Job) -> None:
    folder = save(job)
    away = job.root / "disk"
    folder.rename(away)
    folder.symlink_to(away)
    for where in ("latest", str(folder)):
        found = job.found({RESUME: where})
        assert wrong(found) == set() and f"a link to {away}" in found["resume.chosen"].what
    away.rename(job.root / "unmounted")
    found = job.found({RESUME: str(folder)})
    assert wrong(found) == {"resume.not_a_checkpoint"}


@pytest.mark.parametrize("where", ["run/checkpoints/step-00000009", "runn", "/no/such/place"])
def test_a_path_that_is_not_there(job: Job, where: str) -> None:
    save(job)
    found = job.found({RESUME: where})["resume.not_a_checkpoint"]
    assert found.severity.value == "error" and "does not exist" in found.found and "latest" in found.hint
    assert ("step-00000002" in found.found) == ("checkpoints" in where)


def test_a_checkpoint_that_was_converted(job: Job) -> None:
    """Nothing is known of its data: nothing is compared, and that is said."""
    folder = save(job)
    _json(folder / "state.json", converted_from="a checkpoint of another program", seed=99, global_batch=99)
    write_manifest(folder, 2)
    found = job.found({RESUME: str(folder)})
    assert wrong(found) == set() and "another program" in found["resume.converted"].what


@pytest.mark.parametrize(
    ("strategy", "code", "severity"),
    [("zero2", "resume.moved", "note"), ("mine:Class", "checkpoint.other_strategy", "error")],
)
def test_another_strategys_checkpoint(job: Job, strategy: str, code: str, severity: str) -> None:
    """Read or refused; and whether data of an earlier definition is the same cannot be told."""
    folder = save(job)
    earlier = {"data_fingerprint": "of 3b6e39d", "data_definition": "of 3b6e39d"}
    _json(folder / "state.json", strategy=strategy, strategy_label=strategy, **earlier)
    write_manifest(folder, 2)
    found = job.found({RESUME: str(folder)})
    assert found[code].severity.value == severity and strategy in found[code].what
    if severity == "note":  # a refusal is told alone
        assert "resume.other_strategy" not in found  # said once, with what it costs
        assert found["resume.data_not_compared"].severity.value == "warning"
        assert f"{strategy}, 1 rank → " in found["resume.moved"].what
