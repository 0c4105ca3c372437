"""``make gpu-check`` itself, tried where there is no GPU: against the CPU."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import warm
from gpu_cases import CASES, TOLERANCE, DeviceCase
from gpu_check import Broken, DeviceChecker
from gpu_measured import Filled, planned_memory, tensor_bytes
from gpu_page import PAGE, page
from gpu_program import TIMED_OUT, Programs
from gpu_suite import DEVICE, TESTS, suite

from paceline.config.schema import Config

HERE = Path(__file__).resolve().parent
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_a_config_with_a_reference_in_one_process(case: DeviceCase) -> None:
    folders = dict.fromkeys(("tokenizer", "documents", "pairs", "cache"), "none")
    assert Config.model_validate(case.config(folders, "run", "cuda")).training.use_cpu is not True
    reference = Config.model_validate(case.reference.config(folders, "run", "cpu")).training
    own = Config.model_validate(case.config(folders, "run", "cpu")).training
    assert (reference.use_cpu, reference.distributed_strategy) == (True, "single")
    rows = own.per_device_train_batch_size * own.gradient_accumulation_steps * case.data_parallel
    assert rows == reference.per_device_train_batch_size * reference.gradient_accumulation_steps


def test_without_a_gpu_it_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    main = runpy.run_path(str(HERE / "__main__.py"))["main"]
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "sees no GPU" in said.err


@pytest.mark.integration
@pytest.mark.full
def test_the_script_against_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two quick cases: a resume and an export, and an optimizer with quantised states; a page that says no
    GPU was used.
    """
    main = runpy.run_path(str(HERE / "__main__.py"))["main"]
    target = tmp_path / "page.md"
    before = PAGE.read_bytes()
    chosen = ["--device", "cpu", "--to", str(target), "--keep", str(tmp_path / "runs"), "--jobs", "1"]
    assert main([*chosen, "--only", "sft fp32"], started=warm.Popen) == 0
    text = target.read_text(encoding="utf-8")
    assert "| sft fp32 | ✓ | losses within 0.0e+00 of the CPU's; resume bit for bit; logits" in text
    assert "no GPU was used" in text and PAGE.read_bytes() == before
    assert main([*chosen, "--only", "8-bit"], started=warm.Popen) == 0
    assert "| sft bf16, 8-bit AdamW | ✓ | losses within " in target.read_text(encoding="utf-8")
    assert "1 hold;" in capsys.readouterr().out


def test_a_machine_on_which_nothing_runs_is_told_by_the_first_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the first card that was lent a package did not import: 37 cases said so, for five minutes."""
    main = runpy.run_path(str(HERE / "__main__.py"))["main"]
    started: list[str] = []

    def broken(argv: list[str], **given: Any) -> Any:
        started.append(argv[-3])
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit('no module of that name')"], **given)

    target = tmp_path / "page.md"
    chosen = ["--device", "cpu", "--to", str(target), "--keep", str(tmp_path / "runs")]
    assert main(chosen, started=broken) == 1 and len(started) == 1 and not target.exists()
    out = capsys.readouterr().out
    assert "no module of that name" in out and "--keep-going" in out and "no page was written" in out


@pytest.mark.integration
def test_a_case_that_fails_is_told_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = DeviceChecker(Programs(tmp_path, warm.Popen), "cpu")
    case = BY_NAME["sft bf16, recompute"]
    refused = replace(case, name="refused", training={"optim": "paged_adamw_8bit"})
    found = checker.check(refused)
    assert found.result == "fails" and found.text.startswith("refused: ")
    monkeypatch.setitem(TOLERANCE, "bf16", -1.0)  # no difference is small enough
    found = checker.check(case)
    assert found.result == "fails" and found.text.startswith("losses differ by 0.0e+00 (CPU, cpu: ")


def test_a_program_past_its_time_is_killed(tmp_path: Path) -> None:
    def sleeping(argv: list[str], **given: Any) -> Any:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], **given)

    ended = Programs(tmp_path, sleeping).run(0.2, "train", "none.yaml")
    assert ended.code == TIMED_OUT and "no end within 0 s" in ended.err


def test_the_devices_tests_that_run_on_a_card_exist_and_what_fails_is_named() -> None:
    for file, names in TESTS.items():
        text = (DEVICE / file).read_text(encoding="utf-8")
        assert all(f"def {name}(" in text for name in names)
    given: list[tuple[list[str], str]] = []

    def printing(text: str, code: int) -> Any:
        def started(argv: list[str], *, env: dict[str, str], **options: Any) -> Any:
            given.append((argv, env["PACELINE_DEVICE_TESTS"]))
            program = f"print({text!r}); raise SystemExit({code})"
            return subprocess.Popen([sys.executable, "-c", program], **options)

        return started

    result, said = suite(printing("..\n= 61 passed, 3 skipped in 9s =", 0))
    assert (result, said.partition(";")[0]) == ("holds", "61 passed, 3 skipped in 9s")
    assert given[0][1] == "card" and any(part.endswith("test_sft_trains_as_on_a_cpu") for part in given[0][0])
    with pytest.raises(Broken, match="1 failed in 9s; FAILED a::b"):
        suite(printing("FAILED a::b - RuntimeError\n1 failed in 9s", 1))


@pytest.mark.parametrize(
    ("share", "first", "each", "rows", "lora"),
    [(0.9, 20, 1, 53, False), (0.5, 20, 4, 6, False), (0.9, 79, 1, 60, True), (0.9, 90, 1, 0, True)],
)
def test_the_card_is_filled_by_the_plan(
    share: float,
    first: int,
    each: int,
    rows: int,
    lora: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peak of so many rows is at most ``share`` of 80 bytes; LoRA where one row of the whole is not."""
    filled = Filled(Programs(tmp_path), "none", "cuda", 80)

    def planned(count: int, with_lora: bool) -> dict[str, int]:
        start = (first - 66 if first < 90 else 80) if with_lora else first
        return {"memory_bytes": start + each * (count - 1)}

    monkeypatch.setattr(filled, "planned_rows", planned)
    if not rows:
        with pytest.raises(Exception, match="does not fit"):
            filled.fit_rows(share)
        return
    assert filled.fit_rows(share)[:2] == (rows, lora)
    assert planned(rows, lora)["memory_bytes"] <= share * 80 < planned(rows + 1, lora)["memory_bytes"]


def test_the_page_in_the_tree_says_what_was_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if "None: no GPU was at hand yet." in text:
        assert text == page(None, [])
    assert all(case.name in text for case in CASES)
    device = {"device": "1 × X", "driver": "1.2"}
    found = {"name": "sft fp32", "group": "one process", "result": "fails", "text": "a|b\nc", "seconds": 3.4}
    made = page(device, [found])
    assert "- device: 1 × X" in made and "| sft fp32 | ✗ | a\\|b c | 3 |" in made and "zero3" in made


def test_tensors_are_compared_with_tensors() -> None:
    """torch's peak holds neither context nor fragments, which the plan's has."""
    terms = {"parameters": 6 * 2**30, "fragments": 2**30, "overhead": 3 * 2**30}
    plan = {"memory_bytes": 10 * 2**30, "memory_terms": terms}
    assert tensor_bytes(plan) == 6 * 2**30
    assert planned_memory(plan) == "plan 6.00 GiB of tensors (10.00 with context and fragments)"
