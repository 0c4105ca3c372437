"""``paceline evaluate`` and ``paceline generate``: Transformers' numbers, any number of ranks, a kill."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import instruction_rows, write_tokenizer

from paceline.api.evaluating import Evaluation, table
from paceline.cli.main import dispatch
from paceline.core.errors import ConfigError, DataError
from paceline.data.tokenizer.file_facts import inner_texts
from paceline.evaluation.answers_file import generate_rows
from paceline.evaluation.file_rows import FileRows, read_task
from paceline.evaluation.job_checks import checked
from paceline.evaluation.model_folders import config_of, named_models
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.processes.rank import compute
from paceline.evaluation.processes.work_folder import ANSWERS, LOSSES, PartFile, WorkFolder, own_batches
from paceline.evaluation.scores.judge import score_in
from paceline.evaluation.scores.model_scores import answers_of, losses_of, measure

ROWS = 13  # a prime number, so that no number of ranks or rows a batch divides it


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a tiny random Llama and a chat template."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = write_tokenizer(tmp_path_factory.mktemp("model"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=192,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in instruction_rows(ROWS)))
    return file


def job_of(model: Path, rows: Path, **more: Any) -> EvaluationJob:
    given = {"models": (str(model),), "data": {"path": str(rows)}, "batch_size": 3, **more}
    return EvaluationJob(**given)


def one_measured(job: EvaluationJob) -> Any:
    return measure(named_models(job, [])[0], job, [], lambda *_: None)


def by_hand(model: Path, rows: Path) -> tuple[float, int, int]:
    """(mean loss, tokens, right tokens) by Transformers alone, a row at a time without padding."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    hf, tokenizer = AutoModelForCausalLM.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    total, tokens, right = 0.0, 0, 0
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        asked = row["instruction"] + (f"\n{row['input']}" if row.get("input") else "")
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": row["output"]}]
        whole = tokenizer.apply_chat_template(
            turns, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids = torch.tensor([whole["input_ids"]])
        labels = ids.where(torch.tensor([whole["assistant_masks"]]) == 1, -100)
        with torch.no_grad():
            out = hf(input_ids=ids, labels=labels)
        count = int((labels[:, 1:] != -100).sum())
        total, tokens = total + float(out.loss) * count, tokens + count
        right += int((out.logits[:, :-1].argmax(-1) == labels[:, 1:]).sum())
    return total / tokens, tokens, right


def test_the_numbers_are_those_of_transformers(model: Path, rows: Path) -> None:
    found = one_measured(job_of(model, rows))
    loss, tokens, right = by_hand(model, rows)
    assert (found["rows"], found["tokens"]) == (ROWS, tokens)
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert found["token_accuracy"] == right / tokens


def test_the_logits_of_a_batch_exist_a_chunk_at_a_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same losses in chunks of three places; a class whose head cannot be taken alone is asked whole."""
    from transformers import AutoModelForCausalLM

    from paceline.data.token_table import encode_labels
    from paceline.evaluation.scores.row_losses import RowLosses
    from paceline.models.heads.lm_head import Head

    hf = AutoModelForCausalLM.from_pretrained(model).eval()
    drawn = torch.Generator().manual_seed(1)
    documents = []
    for length, loss in ((9, 5), (4, 0), (13, 12)):
        ids = torch.randint(1, 320, (length,), generator=drawn).numpy()
        documents.append(encode_labels(ids, np.arange(length) >= length - loss))
    widths: list[int] = []
    own = Head.own_logits

    def counted(head: Head, hidden: torch.Tensor) -> torch.Tensor:
        widths.append(len(hidden))
        return own(head, hidden)

    monkeypatch.setattr(Head, "own_logits", counted)
    monkeypatch.setattr(Head, "chunk_rows", 3)
    chunked = RowLosses(hf, 0)(documents)
    assert max(widths) == 3 and [row[1] for row in chunked] == [5, 0, 12]
    assert RowLosses(hf, 0)(documents[1:2]) == [(0.0, 0, 0)]
    monkeypatch.setattr(Head, "own_logits", lambda head, hidden: hidden)  # not the class's own logits
    whole = RowLosses(hf, 0)(documents)
    for (loss, count, right), (loss_whole, count_whole, right_whole) in zip(chunked, whole, strict=True):
        assert loss == pytest.approx(loss_whole, rel=1e-6) and (count, right) == (count_whole, right_whole)


def test_a_loss_that_is_no_number_is_said_and_the_report_stays_json() -> None:
    notes: list[Any] = []
    rows = FileRows(0, (), numbers=[4, 6, 7])
    found = losses_of(rows, [[1.0, 2, 1], [math.nan, 2, 0], [math.inf, 2, 0]], notes)
    assert found["loss"] is None and found["perplexity"] is None and found["token_accuracy"] == 1 / 6
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    [note] = notes
    assert "2 of 3 rows" in note.what and note.found.startswith("row 7: nan")
    nothing = losses_of(FileRows(0, (), numbers=[1]), [[0.0, 0, 0]], notes)
    assert nothing["loss"] is None and len(notes) == 1


def work_of(folder: Path, model: Path, rows: Path, **more: Any) -> WorkFolder:
    """The work that ``measure`` writes, in a folder that stays."""
    from paceline.evaluation.file_rows import read_task, settings_of
    from paceline.evaluation.model_folders import config_of

    job = job_of(model, rows, overrides=("generation.temperature=1.0", "generation.max_new_tokens=5"), **more)
    config = config_of(named_models(job, [])[0], model, job)
    files = {task: read_task(task, config, []) for task in (LOSSES, ANSWERS)}
    folder.mkdir()
    work = WorkFolder(folder)
    work.write(settings_of(job, config, files, model, (LOSSES, ANSWERS)))
    for task, found in files.items():
        work.write_rows(task, found.documents, found.numbers)
    return work


def test_any_number_of_ranks_computes_the_same_row_by_row(model: Path, rows: Path, tmp_path: Path) -> None:
    results = {}
    for world_size in (1, 2, 3):
        work = work_of(tmp_path / str(world_size), model, rows, samples=2)
        for rank in range(world_size):
            compute(work, rank, world_size)
        results[world_size] = [work.results(task, ROWS, 3) for task in (LOSSES, ANSWERS)]
    assert results[1] == results[2] == results[3]
    answers = results[1][1]
    assert len(answers) == ROWS and all(len(one) == 2 for one in answers)
    assert len({json.dumps(one) for one in answers}) > ROWS // 2  # the noise differs by row


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_every_row_is_in_one_batch_of_one_rank(world_size: int) -> None:
    found = [
        number
        for rank in range(world_size)
        for _, rows in own_batches(ROWS, 3, rank, world_size)
        for number in range(ROWS)[rows]
    ]
    assert sorted(found) == list(range(ROWS))


def generated(job: EvaluationJob) -> list[Any]:
    generate_rows(job, [], lambda *_: None)
    return [json.loads(line) for line in Path(str(job.to)).read_text().splitlines()]


def test_a_killed_generation_goes_on_without_a_duplicate(
    model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(model, rows, overrides=("generation.max_new_tokens=5",), to=str(tmp_path / "out.jsonl"))
    whole = generated(replace(job, to=str(tmp_path / "whole.jsonl")))
    append, done = PartFile.append, []

    def killed(self: PartFile, batch: int, results: Sequence[Any]) -> None:
        if len(done) == 2:
            self._file.write(b'[2, [{"text"')  # torn
            raise KeyboardInterrupt
        done.append(batch)
        append(self, batch, results)

    monkeypatch.setattr(PartFile, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        generate_rows(job, [], lambda *_: None)
    assert not Path(str(job.to)).exists() and done == [0, 1]
    monkeypatch.setattr(PartFile, "append", lambda self, b, r: (done.append(b), append(self, b, r))[1])
    assert generated(job) == whole
    assert done == [0, 1, 2, 3, 4]  # nothing twice
    assert [one["row"] for one in whole] == list(range(1, ROWS + 1))
    assert whole[0]["input"] == instruction_rows(ROWS)[0]
    assert {one["finish_reason"] for one in whole} <= {"stop", "length"}
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out.jsonl", "whole.jsonl"]


def test_a_file_is_not_replaced_and_not_continued_by_another_command(
    model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(model, rows, overrides=("generation.max_new_tokens=2",), to=str(tmp_path / "out.jsonl"))
    monkeypatch.setattr(PartFile, "append", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        generate_rows(job, [], lambda *_: None)
    monkeypatch.undo()
    with pytest.raises(ConfigError) as other:
        generate_rows(replace(job, seed=1), [], lambda *_: None)
    assert other.value.diagnostics[0].code == "evaluation.output"
    assert len(generated(job)) == ROWS
    with pytest.raises(ConfigError, match="exists already"):
        generate_rows(job, [], lambda *_: None)
    assert len(generated(replace(job, overwrite=True, seed=1))) == ROWS


def test_a_bad_row_is_named_or_left_out(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": ""}\n{"prompt": "b"}\n')
    job = job_of(model, file, overrides=("generation.max_new_tokens=2",), to=str(tmp_path / "out.jsonl"))
    with pytest.raises(DataError) as refused:
        generate_rows(job, [], lambda *_: None)
    assert f"{file}:2" in refused.value.diagnostics[0].where
    found = generated(replace(job, overrides=(*job.overrides, "data.on_bad_row=skip")))
    assert [one["row"] for one in found] == [1, 3]


def test_a_prompt_without_room_is_named(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "a"}) + "\n" + json.dumps({"prompt": "a b " * 100}) + "\n")
    with pytest.raises(DataError) as refused:
        generate_rows(job_of(model, file, to=str(tmp_path / "out.jsonl")), [], lambda *_: None)
    assert "row 2" in refused.value.diagnostics[0].where


def test_everything_that_is_wrong_with_a_job_is_said_at_once(model: Path, tmp_path: Path) -> None:
    job = EvaluationJob(
        models=(str(model), str(tmp_path / "nosuch")),
        data={"path": str(tmp_path / "nothere.jsonl")},
        overrides=("generation.temperatur=3",),
        metrics=("exactmatch", "pass@4"),
        dtype="fp8",
        judge=str(tmp_path / "nojudge"),
        judge_prompt=str(tmp_path / "noprompt"),
    )
    with pytest.raises(ConfigError) as refused:
        checked(job, [])
    said = [f"{one.where} {one.found}" for one in refused.value.diagnostics]
    wrong = [
        "exactmatch",
        "--samples 1",
        "fp8",
        "nosuch",
        "nojudge",
        "--judge-prompt",
        "temperatur",
        "nothere",
    ]
    assert [one for one in wrong if not any(one in text for text in said)] == []
    assert len(said) == len(wrong)
    with pytest.raises(ConfigError, match="nothing is to be measured"):
        checked(replace(job, losses=False, metrics=(), judge=None), [])


def test_several_answers_need_a_temperature(model: Path, rows: Path) -> None:
    with pytest.raises(ConfigError, match="temperature 0"):
        checked(job_of(model, rows, samples=2), [])


def test_only_keys_that_say_how_rows_are_read_and_answered_are_set(model: Path, rows: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.seed"):
        one_measured(job_of(model, rows, overrides=("training.seed=3",)))
    with pytest.raises(ConfigError, match="max_lenght"):
        one_measured(job_of(model, rows, overrides=("data.max_lenght=3",)))


def test_metrics_and_a_judge_of_answers(model: Path, rows: Path) -> None:
    notes: list[Any] = []
    job = job_of(
        model,
        rows,
        metrics=("exact_match", "f1", "pass@2"),
        samples=2,
        judge=str(model),
        losses=False,
        overrides=("generation.temperature=1.0", "generation.max_new_tokens=4"),
        batch_size=ROWS,
    )
    judge_job = replace(job, data={"path": str(rows), "max_rows": 2})
    with pytest.raises(DataError, match="no room"):  # the judge has 192 positions only
        measure(named_models(job, [])[0], judge_job, notes, lambda *_: None)
    found = measure(named_models(job, [])[0], replace(judge_job, judge=None), notes, lambda *_: None)
    assert found["answers"] == 4 and 0 <= float(str(found["pass@2"])) <= 1 and "loss" not in found


def test_expected_answers_are_compared_without_special_tokens_and_named(model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    mark = min(inner_texts(tokenizer).tokens)
    path = tmp_path / "marked.jsonl"
    path.write_text(json.dumps({"prompt": "Who?", "answer": f"{mark}5"}))
    notes: list[Any] = []
    job = job_of(model, path, metrics=("exact_match",))
    rows = read_task(ANSWERS, config_of(named_models(job, [])[0], model, job), notes)
    found = answers_of(rows, [[{"text": "5", "tokens": 2, "ended": True}]], job, notes)
    assert found["exact_match"] == 1.0
    assert [mark in one.found for one in notes if one.code == "data.special_in_answer"] == [True]


@pytest.mark.parametrize(
    ("text", "value"),
    [("Good. Score: 7", 7.0), ("score: 3\nScore: **9**", 9.0), ("Score: 11", None), ("fine", None)],
)
def test_a_judges_score_is_its_last_one(text: str, value: float | None) -> None:
    assert score_in(text) == value


def test_the_table_has_a_line_a_model_and_a_column_a_number() -> None:
    found = [
        Evaluation("step-1", Path("a"), 1, 3, 10, 0.5, 1.65, 0.25, {"f1": 0.5, "rows_skipped": 2}),
        Evaluation("step-2", Path("b"), 2, 3, 1000, 0.25, 1.28, 0.5, {}),
    ]
    lines = table(found).splitlines()
    assert lines[0].split() == ["model", "rows", "tokens", "loss", "perplexity", "token", "accuracy", "f1"]
    assert lines[1].split() == ["step-1", "3", "10", "0.5000", "1.6500", "25.0%", "50.0%"]
    assert lines[2].split() == ["step-2", "3", "1,000", "0.2500", "1.2800", "50.0%", "-"]


@pytest.mark.parametrize("step", [1, None])
def test_a_picture_of_several_checkpoints(step: int | None, tmp_path: Path) -> None:
    from paceline.watch.summary_plots import draw_evaluations

    found = [
        {"name": f"m{n}", "path": f"/x/m{n}", "step": step and n, "loss": 1.0 / n, "scores": {"f1": n / 10}}
        for n in (1, 2)
    ]
    made = draw_evaluations(found, tmp_path / "e.png")
    assert made.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_bad_options_are_refused_before_anything_is_started(
    rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.cli.evaluation.call", lambda *_: pytest.fail("a process was started"))
    for options in (
        ["data.max_length=3"],
        ["m", "--columns", "a"],
    ):
        with pytest.raises(ConfigError) as refused:
            dispatch(["evaluate", *options, "--data", str(rows)])
        assert refused.value.diagnostics[0].code == "cli.option"


def test_the_command_line_and_ranks_of_their_own(
    paceline: Any, model: Path, rows: Path, tmp_path: Path
) -> None:
    """Processes as a user starts them: two ranks write what one wrote."""
    common = [str(model), "--data", str(rows), "--batch-size", "3", "generation.max_new_tokens=3"]
    one = paceline("generate", *common, "--to", str(tmp_path / "1.jsonl"))
    two = paceline("generate", *common, "--to", str(tmp_path / "2.jsonl"), "--nproc", "2")
    assert one.code == two.code == 0, one.err + two.err
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()
    assert f"{ROWS} answers to {ROWS} rows" in one.out
