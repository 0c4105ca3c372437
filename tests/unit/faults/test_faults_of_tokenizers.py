"""What only the loaded tokenizer tells, and a folder of saved datasets: found by ``plan``, which loads
them where their files leave a question open.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_jobs import Job, tried_here
from test_faults_of_rollouts import SCORES, rollout

from paceline.plan.needs_trial import DATASETS, TOKENIZER

Settings = dict[str, Any]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def changed(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def _no_eos(job: Job) -> Settings:
    changed(job.model / "tokenizer_config.json", eos_token=None)
    return {}


def _no_bos(job: Job) -> Settings:
    changed(job.model / "tokenizer_config.json", add_bos_token=True)
    (job.root / "texts.jsonl").write_text('{"text": "a b"}\n' * 20)
    return {"data.train": str(job.root / "texts.jsonl")}


def _slow(job: Job) -> Settings:
    """A tokenizer of Transformers that is Python alone."""
    for file in job.model.glob("tokenizer*"):
        file.unlink()
    (job.model / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "ByT5Tokenizer", "eos_token": "</s>"})
    )
    return {}


def _costly(job: Job) -> Settings:
    return {"model.chat_template": LOOP}


def _other_tokens(folder: Path) -> None:
    """One token of the tokenizer there is another text."""
    text = json.loads((folder / "tokenizer.json").read_text())
    last = text["added_tokens"][-1]
    text["model"]["vocab"] = {
        ("<|another|>" if i == last["id"] else w): i for w, i in text["model"]["vocab"].items()
    }
    last["content"] = "<|another|>"
    (folder / "tokenizer.json").write_text(json.dumps(text))


def _teacher(job: Job) -> Settings:
    teacher = job.root / "models" / "gpt2"
    _other_tokens(teacher)
    return {"training.algorithm": "distillation", "training.distillation.teacher_model": str(teacher)}


def _dpo_reference(job: Job) -> Settings:
    other, rows = job.root / "models" / "gpt2", job.root / "few_pairs.jsonl"
    _other_tokens(other)
    pairs = [{"prompt": f"Q{n}", "chosen": "yes", "rejected": "no"} for n in range(8)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in pairs))
    settings = {"training.algorithm": "dpo", "data.train": str(rows)}
    return settings | {"training.dpo.ref_model": str(other)}


def _value(job: Job) -> Settings:
    other = job.root / "models" / "gpt2"
    _other_tokens(other)
    settings = rollout(job, [{"name": "ended"}]) | {"training.algorithm": "ppo"}
    return settings | {"training.ppo.value_model": str(other)}


def _other_template(job: Job) -> str:
    other = job.root / "models" / "gpt2"
    (other / "chat_template.jinja").write_text("{% for m in messages %}!{{ m['content'] }}{% endfor %}")
    return str(other)


def _judge_of_other_template(job: Job) -> Settings:
    judge = _other_template(job)
    changed(Path(judge) / "config.json", **SCORES)
    return rollout(job, [{"name": "model", "options": {"model": judge}}])


def _teacher_of_other_template(job: Job) -> Settings:
    teacher = _other_template(job)
    return {"training.algorithm": "distillation", "training.distillation.teacher_model": teacher}


def _reference_of_other_template(job: Job) -> Settings:
    settings = rollout(job, [{"name": "ended"}]) | {"training.grpo.beta": 0.05}
    return settings | {"training.grpo.ref_model": _other_template(job)}


def _value_of_other_template(job: Job) -> Settings:
    settings = rollout(job, [{"name": "ended"}]) | {"training.algorithm": "ppo"}
    return settings | {"training.ppo.value_model": _other_template(job)}


def _judge(job: Job) -> Settings:
    judge = job.root / "models" / "gpt2"
    changed(judge / "config.json", **SCORES)
    _other_tokens(judge)
    return rollout(job, [{"name": "model", "options": {"model": str(judge)}}])


def _saved(job: Job, damage: bool) -> Settings:
    import datasets

    folder = job.root / "saved"
    datasets.Dataset.from_list([{"instruction": "a", "output": "b"}] * 4).save_to_disk(str(folder))
    if damage:
        next(folder.glob("*.arrow")).write_bytes(b"no arrow")
    return {"data.train": str(folder)}


def _equal_pairs(job: Job) -> Settings:
    """Two of 300 pairs differ after max_length alone."""
    rows = [{"prompt": f"Q{n}", "chosen": "yes", "rejected": "no"} for n in range(300)]
    for n in (170, 271):
        rows[n] |= {"chosen": "the same words " * 40 + "yes", "rejected": "the same words " * 40 + "no"}
    (job.root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"training.algorithm": "dpo", "data.train": str(job.root / "pairs.jsonl")}


FAULTS: list[tuple[str, str, Callable[[Job], Settings]]] = [
    ("data.no_eos", "warning", _no_eos),
    ("data.tokenizer_ends", "warning", _no_bos),
    ("data.no_offsets", "error", _slow),
    ("data.template_token", "warning", lambda job: {"model.chat_template": "chatml"}),
    ("data.template_costly", "error", _costly),
    ("rewards.tokenizer", "error", _judge),
    ("algorithm.teacher_tokens", "error", _teacher),
    ("algorithm.teacher_tokens", "error", _dpo_reference),
    ("algorithm.teacher_tokens", "error", _value),
    ("rewards.template", "warning", _judge_of_other_template),
    ("algorithm.teacher_template", "warning", _teacher_of_other_template),
    ("algorithm.teacher_template", "warning", _reference_of_other_template),
    ("algorithm.teacher_template", "warning", _value_of_other_template),
    ("data.same_answers", "error", _equal_pairs),
    ("data.not_a_dataset", "error", lambda job: _saved(job, True)),
]


@pytest.mark.parametrize(("code", "severity", "fault"), FAULTS, ids=[code for code, _, _ in FAULTS])
def test_a_fault_is_found_by_plan(
    job: Job, code: str, severity: str, fault: Callable[[Job], Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.core.security import resource_limits

    monkeypatch.setattr(resource_limits, "CPU_SECONDS", 0.2)
    tried_here(monkeypatch)
    found = job.found(fault(job))
    told = {c: d.render() for c, d in found.items() if d.severity.value != "note"}
    assert set(told) == {code}, told
    assert found[code].severity.value == severity and (found[code].hint or found[code].found)


def test_a_pair_that_is_cut_says_so(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    tried_here(monkeypatch)
    found = job.found(_equal_pairs(job))["data.same_answers"]
    assert "2 of 300 rows" in found.what
    assert "pairs.jsonl:171: in the 64 tokens that are kept: increase data.max_length" in found.found


LOOPS = "{% for i in range(3) %}{% endfor %}{% for turn in messages %}{{ turn.content }}{% endfor %}"


def test_what_is_sound_is_let_through_and_said(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.launch.preflight.load_config import load
    from paceline.launch.preflight.plan_job import planned

    tried_here(monkeypatch)
    for settings, tried in (
        (_saved(job, False), DATASETS),
        ({"model.chat_template": LOOPS}, TOKENIZER),
        ({}, ""),
    ):
        plan, said = planned(load(job.yaml(settings), []))
        assert not [d.render() for d in said if d.code.startswith("data.")]
        assert [d.reason.split(" (")[0] for d in plan.decisions if d.subject == "imports"] == (
            [tried] if tried else []
        )
