"""A model shared among processes answers and scores as one process does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from support import Run, run_process, write_rows, write_tokenizer
from vision_models import write_vision_folder

from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.evaluation.answers_file import generate_rows
from paceline.evaluation.job_checks import checked
from paceline.evaluation.processes import ranks
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.processes.sharded_model import check_shareable
from paceline.evaluation.scores.model_scores import measure
from paceline.launch.run_secret import FILE

pytestmark = [pytest.mark.integration]
ANSWER = {"role": "assistant", "content": "red apple"}
IMAGES = ["0.png", "1.png"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    place = tmp_path_factory.mktemp("shared")
    write_rows(place / "rows.json", 10)
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "vocab_size": 320}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.3)).save_pretrained(place / "model")
    AutoTokenizer.from_pretrained(write_tokenizer(place / "tokenizer")).save_pretrained(place / "model")
    return place


def job(place: Path, strategy: str, to: str = "", nproc: int = 2) -> EvaluationJob:
    return EvaluationJob(
        models=(str(place / "model"),),
        data={"path": str(place / "rows.json")},
        overrides=("generation.max_new_tokens=8", "generation.temperature=0.7"),
        metrics=("f1",),
        samples=2,
        seed=3,
        nproc=nproc,
        strategy=strategy,
        batch_size=4,
        to=to or None,
    )


@pytest.mark.parametrize("strategy", ["tp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_shared_model_answers_and_scores_as_one_process(place: Path, strategy: str) -> None:
    found = {}
    for way, nproc in (("copies", 1), (strategy, 2)):
        to = place / f"{way}-{strategy}.jsonl"
        generate_rows(job(place, way, str(to), nproc), [], lambda *_: None)
        one = job(place, way, nproc=nproc)
        found[way] = (measure(checked(one, [])[0], one, [], lambda *_: None), to.read_text())
    (alone, answers), (shared, others) = found.values()
    assert others == answers and len({json.loads(line)["generated"] for line in answers.splitlines()}) > 5
    assert alone.keys() == shared.keys() and alone["loss"] == pytest.approx(shared["loss"], rel=2e-6)
    assert {k: v for k, v in alone.items() if k not in ("loss", "perplexity")} == {
        k: v for k, v in shared.items() if k not in ("loss", "perplexity")
    }


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["tp", "fsdp"])
def test_a_shared_model_sees_pictures_as_one_process_does(strategy: str, tmp_path: Path) -> None:
    """Rows with a picture, with two and with none; a whole model with its tower."""
    write_vision_folder(tmp_path / "model", "gemma3")
    for n in range(2):
        Image.effect_noise((40 + 8 * n, 56), 80).convert("RGB").save(tmp_path / f"{n}.png")
    rows = [
        {
            "messages": [{"role": "user", "content": "<image>" * count + "what is it"}, ANSWER],
            "images": IMAGES[:count],
        }
        for count in (1, 2, 0)
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    found = {}
    for way, nproc in (("copies", 1), (strategy, 2)):
        to = tmp_path / f"{way}.jsonl"
        generate_rows(job(tmp_path, way, str(to), nproc), [], lambda *_: None)
        one = job(tmp_path, way, nproc=nproc)
        found[way] = (measure(checked(one, [])[0], one, [], lambda *_: None), to.read_text())
    (alone, answers), (shared, others) = found.values()
    assert others == answers and len(answers.splitlines()) == 6
    assert shared["loss"] == pytest.approx(alone["loss"], rel=2e-6)


@pytest.mark.parametrize("other", ["b" * 32, pytest.param("", marks=pytest.mark.slow)], ids=["wrong", "none"])
def test_a_process_without_the_secret_of_the_others_is_refused_by_name(
    other: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither waits for the time-out, half an hour; nothing is computed with a stranger."""
    file, meeting = place / "other-secret", ranks.meeting_environment
    file.write_text(other)
    file.chmod(0o600)

    def changed(rank: int, *numbers: int) -> dict[str, str]:
        return meeting(rank, *numbers) | ({FILE: str(file) if other else ""} if rank else {})

    monkeypatch.setattr(ranks, "meeting_environment", changed)
    to = place / "strangers.jsonl"
    with pytest.raises(PacelineError, match="evaluation.rank"):
        generate_rows(job(place, "tp", str(to)), [], lambda *_: None)
    told = capfd.readouterr().err
    assert "error[runtime.store_secret]" in told and "rank 1 and rank 0 have different secrets" in told
    assert other not in told or not other
    assert not to.exists()


def talked(place: Path, *options: str, lines: str = "Hello\nWhat is it\n") -> Run:
    """What ``paceline chat`` prints for lines from a pipe; sampled, so that processes could diverge."""
    sampling = ("--temperature", "0.9", "--seed", "4", "--max-new-tokens", "8")
    argv = [sys.executable, "-m", "paceline.evaluation.chat", str(place / "model"), *sampling, *options]
    return run_process(argv, 120, None, place, lines)


@pytest.mark.parametrize("strategy", ["tp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_shared_model_chats_as_one_process_with_the_same_seed(place: Path, strategy: str) -> None:
    alone, shared = talked(place), talked(place, "--strategy", strategy, "--nproc", "2")
    assert (alone.code, shared.code) == (0, 0), shared.err
    assert shared.out == alone.out and len(alone.out.split("\n")) > 2


def test_the_library_evaluates_with_a_shared_model_as_with_one_process(place: Path) -> None:
    import paceline

    (alone,), (shared,) = (
        paceline.evaluate(
            str(place / "model"), str(place / "rows.json"), nproc=nproc, strategy=strategy, quiet=True
        )
        for strategy, nproc in (("copies", 1), ("tp", 2))
    )
    assert (shared.rows, shared.tokens) == (alone.rows, alone.tokens) and alone.rows
    assert shared.loss == pytest.approx(alone.loss, rel=2e-6)


@pytest.mark.parametrize("strategy", ["tp", "fsdp"])
def test_a_model_that_scores_is_refused_once_before_processes_start(tmp_path: Path, strategy: str) -> None:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
    made = LlamaForSequenceClassification(LlamaConfig(**sizes, num_attention_heads=2, num_labels=1))
    made.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="gives scores or vectors, not text"):
        check_shareable(tmp_path, strategy, 2)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("ForSequenceClassification", "ForCausalLM"))
    with pytest.raises(ConfigError, match="lacks weights"):
        check_shareable(tmp_path, strategy, 2)


@pytest.mark.parametrize(
    ("code", "hint"),
    [(-9, "left no message"), (1, "its message above"), (ExitCode.PEER_FAILED, "no process")],
)
def test_the_hint_fits_how_a_process_ended(code: int, hint: str) -> None:
    assert hint in str(ranks.failure(1, code, 2))


@pytest.mark.parametrize("beside", [False, True])
def test_a_model_that_cannot_be_shared_is_refused_before_processes_start(
    place: Path, tmp_path: Path, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    from paceline.evaluation import chat

    model = tmp_path / "model"
    shutil.copytree(place / "model", model)
    if beside:
        (model / "adapter_config.json").write_text("{}")
    monkeypatch.setattr("paceline.evaluation.chat.run_ranks", lambda *_, **__: pytest.fail("started"))
    options = chat.chat_options([str(model), "--strategy", "tp", "--nproc", "2" if beside else "3"])
    with pytest.raises(ConfigError, match="an adapter lies beside" if beside else "not divisible by 3"):
        chat.answer_shared(options, [])


@pytest.mark.parametrize(
    ("change", "found"),
    [({"nproc": 1}, "--nproc 2"), ({"strategy": "zero3"}, "copies, tp, fsdp")],
)
def test_what_cannot_be_shared_is_refused_first(place: Path, change: dict[str, object], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        checked(EvaluationJob(**{**vars(job(place, "tp")), **change}), [])  # type: ignore[arg-type]
