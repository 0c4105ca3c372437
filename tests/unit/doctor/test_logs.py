"""Logs of any trainer: the first cause, on made logs of each id; sound logs; hostile ones.

``made_logs`` renews each wording by trainer, launcher, prefix, order and cut. Every second wording of an id
is held out: no pattern was made by looking at it. The rates bind both halves.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections import Counter
from pathlib import Path

import made_logs
import pytest
from typer.testing import CliRunner

from paceline.cli.main import application_of
from paceline.doctor.logs.catalogue import catalogue, literal
from paceline.doctor.logs.diagnose import FailureReport, diagnose, rank_in_name
from paceline.doctor.logs.reader import MAX_PIECE, LogReader, read_lines

SEEDS = range(2)
CLASSES = {
    "user code", "data", "numerics", "memory", "network", "hardware", "storage", "preemption", "time limit",
    "launcher",
}  # fmt: skip


def read(text: str, name: str = "a.log") -> FailureReport:
    lines = read_lines(io.BytesIO(text.encode("utf-8", "surrogateescape")))
    return diagnose([LogReader(name).read(lines)])


def judged(log: made_logs.MadeLog) -> str:
    """right, wrong or unknown. Without a line of the cause in it, a log may only be unknown or right."""
    report = read(log.text)
    wording = log.wording
    assert wording is not None
    kind, left = wording.kind.replace("_", " "), any(line[:60] in log.text for line in log.root)
    found = report.kind if report.failed else "unknown"
    if found == kind:
        return "right"
    if found == "unknown":
        return "unknown" if left and kind != "unknown" else "right"
    return "wrong"


@pytest.mark.parametrize("held_out", [False, True])
def test_the_class_is_right_on_made_logs(held_out: bool) -> None:
    cases = [w for w in made_logs.wordings("catalogue", "others") if w.held_out is held_out]
    found = Counter(judged(made_logs.failed_log(case, seed)) for case in cases for seed in SEEDS)
    assert found["right"] >= 0.95 * found.total(), found
    assert found["wrong"] <= 0.015 * found.total(), found


def test_the_first_rank_is_named_where_lines_tell_it() -> None:
    found = Counter[bool]()
    for case in made_logs.wordings("catalogue", "others"):
        if (
            case.how == "exc"
            and (report := read((log := made_logs.failed_log(case, 1)).text)).rank is not None
        ):
            found[report.rank == log.rank] += 1
    assert found[True] > 200
    assert found[False] <= 0.01 * found.total()


@pytest.mark.parametrize(("ranks", "first"), [((5,), 5), ((5, 6), None), ((), None)])
def test_a_line_of_the_kernel_is_of_the_one_rank_that_meets_a_fault_of_its_device(
    ranks: tuple[int, ...], first: int | None
) -> None:
    """The driver's line has no rank; two ranks that fail after it may have either card."""
    lines = [
        "[rank0]: step 12 loss 2.1",
        "node-7: NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python, GPU has fallen off the bus.",
        *(f"[rank{rank}]: RuntimeError: CUDA error: unspecified launch failure" for rank in ranks),
        "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or network error",
    ]
    report = read("\n".join(lines))
    assert (report.id, report.rank, report.node) == ("xid", first, "node-7")


def test_nothing_is_found_in_sound_logs() -> None:
    for seed in range(150):
        log = made_logs.sound_log(seed)
        report = read(log.text)
        assert not report.failed, (seed, report)


def test_what_the_trainer_survived_is_no_failure() -> None:
    for case in made_logs.wordings("catalogue", "others"):
        if case.how == "exc":
            assert not read(made_logs.handled_log(case, 0).text).failed, case


def test_every_id_of_the_catalogue_has_a_class_and_a_remedy() -> None:
    causes = catalogue().causes
    assert {cause.kind for cause in causes.values()} == CLASSES
    shared = Path("/work/shared/spec/failure_catalog.json")
    listed = {row["id"] for row in json.loads(shared.read_text())} if shared.is_file() else set()
    assert not listed - set(causes)
    assert len(causes) >= 110
    for cause in causes.values():
        assert cause.text.endswith("."), cause.id
        assert cause.remedy, cause.id
        assert set(cause.before + cause.after + cause.refines) <= set(causes), cause.id


def test_a_gate_is_in_every_text_that_its_pattern_matches() -> None:
    texts = [line for w in made_logs.wordings("catalogue", "others") for line in w.lines]
    for wording in catalogue().wordings:
        for text in texts:
            if wording.regex.search(text):
                assert wording.gate in text.lower(), (wording.regex.pattern, wording.gate, text)
    assert literal(r"a{2}bc\.d[xy]?efg(h|i)j") == "bc.d"


def test_hostile_lines_end() -> None:
    long = [
        "a" * 1_000_000,
        " " * 1_000_000,
        "[" * 200_000,
        "a.b" * 300_000,
        "Error: " * 100_000,
        '"' * 500_000,
    ]
    long += [
        "1:" * 400_000,
        "{" * 400_000,
        "\x1b[" * 300_000,
        "loss: " * 200_000,
        "A" + "a" * 10**6 + "Error: x",
    ]
    begun = time.process_time()
    assert not read("\n".join(long[:4])).failed
    read("\n".join(long))
    assert time.process_time() - begun < 60


def test_memory_is_bounded_on_one_line_without_end() -> None:
    class Endless(io.RawIOBase):
        left, most = 300 << 20, 0

        def readline(self, size: int | None = -1) -> bytes:
            assert size == MAX_PIECE
            take = min(MAX_PIECE, self.left)
            self.left -= take
            return b"x" * take

    pieces = [text for _, text in read_lines(Endless())]
    assert sum(map(len, pieces)) <= 8 * MAX_PIECE


def test_lines_are_counted_as_an_editor_does() -> None:
    text = "a\r\nb\rc\n\x1b[31mRuntimeError: CUDA out of memory\x1b[0m\n"
    assert list(read_lines(io.BytesIO(text.encode())))[-1] == (3, "RuntimeError: CUDA out of memory")
    assert read(text).evidence[0].place == "a.log:3"


def test_a_message_behind_a_bar_is_read() -> None:
    bar = " 59%|█████▊    | 1663/2840 [6:59:31<4:51:53, 14.88s/it]"
    stop = "W1229 16:43:25.650000 190834 x/api.py:723] Received 1 death signal, shutting down workers"
    assert read(f"{bar}{stop}\n").id == "torchrun_sigterm"
    error = 'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: 1\n'
    assert read(f"Train: {bar}{error}").evidence[0].number == 3
    assert read("ValueError: loss: 7.1 is too large\n").id == "python_exception"


def test_a_step_of_slurm_is_none_of_the_training() -> None:
    end = "slurmstepd: error: *** STEP 99121.0 ON n2 CANCELLED AT 2025-04-01 DUE TO TIME LIMIT ***"
    log = f"step: 20 loss: 2.0\n{end}\n"
    assert read(log).id == "time_limit" and read(log).lost.startswith("up to step 20:")


def test_words_that_only_look_like_a_refused_option_or_a_nan() -> None:
    bad = "pyarrow.lib.ArrowInvalid: JSON parse error: Missing a closing quotation mark in string.\n"
    assert read(f"{bad}datasets.exceptions.DatasetGenerationError: x\n").id == "bad_rows"
    assert not read("loaded the rows (no NaN rows found)\nstep 1 loss: 2.0\n").id
    assert not read("step 1 loss: 2.0\nslurm: no oom_kill events in this step\n").id
    assert read("slurmstepd: error: Detected 2 oom_kill events in StepId=7.0\n").id == "slurm_oom"


@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank-00003.log", 3), ("logs/attempt_0/5/stderr.log", 5), ("task_12.out", 12), ("train.log", None)],
)
def test_the_rank_in_a_name(name: str, rank: int | None) -> None:
    assert rank_in_name(Path(name)) == rank


def test_the_verb_reads_files_quotes_no_secret_and_refuses_what_is_no_file(tmp_path: Path) -> None:
    path, other = tmp_path / "rank-1.log", tmp_path / "rank-0.log"
    path.write_text(
        "Traceback (most recent call last):\n"
        "requests.exceptions.HTTPError: 401 Client Error: https://user:pass@hub/x"
        " hf_abcdefghijklmnopqrstuvwxyz012345\n"
    )
    other.write_text("RuntimeError: Connection reset by peer\n")
    app, run = application_of("doctor"), CliRunner()
    done = run.invoke(app, ["--log", str(path), str(other), "--json"])
    report = json.loads(done.stdout)
    assert (done.exit_code, report["class"], report["rank"]) == (1, "launcher", 1)
    assert "pass" not in report["evidence"][0]["text"]
    assert "hf_abc" not in done.stdout
    assert report["evidence"][0]["line"] == 2
    assert [item["id"] for item in report["followed_by"]] == ["conn_reset"]
    shown = run.invoke(app, ["--log", str(path)]).stdout
    assert shown.startswith("launcher: ")
    assert f"{path}:2" in shown.replace("\n              ", "")
    sound = tmp_path / "sound.log"
    sound.write_text("{'loss': 1.0, 'epoch': 1.0}\n{'train_runtime': 1.0}\n")
    assert run.invoke(app, ["--log", str(sound)]).exit_code == 0
    os.mkfifo(tmp_path / "fifo")
    for bad in (tmp_path, tmp_path / "none", tmp_path / "fifo"):
        done = run.invoke(app, ["--log", str(bad)])
        assert "cli.doctor_no_log" in str(done.exception), bad
