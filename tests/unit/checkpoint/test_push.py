"""``paceline push``: one commit on a stand-in of the hub; a card of the run's facts; no secret anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from checkpoint_samples import OneRank, whole
from hub_stand_in import HubStandIn, hub_stand_in
from huggingface_hub import constants

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.export.main import main
from paceline.config.schema import Config
from paceline.core.rundir import RunDir
from paceline.runlog.events import Eval, EventLog, RunStarted, Step

# huggingface_hub hands bytes to its HTTP client in a way that this wants otherwise
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
TOKEN = "hf_" + "Q7x" * 11 + "z"
REPO = "somebody/tiny"
TO = ["--to", f"hf://{REPO}"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    with hub_stand_in() as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.address)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stand-in speaks LFS
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield found


def trained(run: RunDir) -> Path:
    """A run with one checkpoint, events of four steps and an evaluation."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    hf = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=40, tie_word_embeddings=False))
    config = Config.model_validate(
        {
            "model": {"name_or_path": "org/base", "revision": "abc123"},
            "data": {"train": [{"path": "org/rows"}, {"path": "/home/alice/secret-project/mine|a.json"}]},
            "training": {
                "learning_rate": 0.003,
                "output_dir": "/home/alice/out",
                "experiment_name": "hidden",
            },
        }
    )
    files = {"config.json": json.dumps(hf.config.to_dict()).encode()}
    shards = [whole(name, p.detach()) for name, p in hf.named_parameters()]
    path = Checkpointer(run, OneRank()).save(3, shards, {"config": config.to_json()}, files)
    run.config_json.write_text(json.dumps(config.to_json()))
    with EventLog(run.events(0), 0) as log:
        log.write(RunStarted("digest", 1, total_steps=4))
        for step in (1, 2, 3, 4):
            log.write(Step(step, step / 4, loss=5.0 - step / 8, lr=0.003, tokens=100))
        log.write(Eval(3, {"eval_loss": 4.321}))
    return path


def pushed(*words: str) -> int:
    return main(["push", *words])


def test_one_private_commit_that_loads_back(
    run: RunDir, hub: HubStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    trained(run)
    assert pushed(str(run.root), *TO) == 0
    out = capsys.readouterr()
    assert "private: only its owner sees it" in out.out and f"{hub.address}/{REPO}/commit/" in out.out
    assert hub.private == {REPO: True} and len(hub.commits) == 1
    folder = tmp_path / "loaded"
    folder.mkdir()
    for name, contents in hub.files[REPO].items():
        (folder / name).write_bytes(contents)
    weight = AutoModelForCausalLM.from_pretrained(folder).lm_head.weight
    torch.manual_seed(0)
    assert weight.shape == (40, 16) and weight.std() > 0
    # The token went to the hub in its header, and nowhere else.
    assert hub.tokens == {TOKEN, ""} or hub.tokens == {TOKEN}
    assert TOKEN not in out.out + out.err and not any(TOKEN.encode() in body for body in hub.bodies)


def test_the_card_has_the_facts_and_no_secret(run: RunDir, hub: HubStandIn) -> None:
    hub.files["org/base"] = {}
    hub.private["org/base"] = False
    trained(run)
    assert pushed(str(run.root), *TO) == 0
    card = hub.files[REPO]["README.md"].decode()
    header = card.split("---")[1]
    assert 'base_model: "org/base"' in header and "base_model_relation: finetune" in header
    assert "datasets" not in header  # the hub does not know them
    for fact in (
        "| Base model | `org/base`, revision abc123 |",
        "| Data | `org/rows` |",
        "| Data | `mine\\|a.json` |",
        "| Algorithm | sft |",
        "| Steps | 3 of 4 |",
        "| Tokens | 300 |",
        "| 3 | 4.6250 | 0.003 |",
        "| eval_loss | 4.321 |",
        "training.learning_rate=0.003",
        "AutoModelForCausalLM",
    ):
        assert fact in card, card
    # what is of the machine, and steps after the checkpoint's, are not in it
    assert not any(word in card for word in ("alice", "secret-project", "hidden", "4.5000", TOKEN))


def test_a_repository_with_a_model_is_replaced_only_when_told(
    run: RunDir, hub: HubStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(run)
    hub.files[REPO] = {".gitattributes": b"", "README.md": b"mine", "pytorch_model.bin": b"old"}
    hub.private[REPO] = False
    assert pushed(str(run.root), *TO) == 2
    assert "[push.not_empty]" in (text := capsys.readouterr().err) and "pytorch_model.bin" in text
    assert not hub.commits
    assert pushed(str(run.root), *TO, "--overwrite") == 0
    out = capsys.readouterr().out
    assert (
        "public: everybody sees it" in out and "no longer there, but in its history: pytorch_model.bin" in out
    )
    assert set(hub.files[REPO]) >= {".gitattributes", "README.md", "model.safetensors", "config.json"}
    assert "pytorch_model.bin" not in hub.files[REPO] and hub.commits[0]["parentCommit"] == "0" * 40


@pytest.mark.parametrize(
    ("to", "code"), [("hf://tiny", "push.place"), ("hf://a/b/c", "push.place"), ("a-folder", "push.place")]
)
def test_places_that_are_none(
    run: RunDir, hub: HubStandIn, capsys: pytest.CaptureFixture[str], to: str, code: str
) -> None:
    trained(run)
    assert pushed(str(run.root), "--to", to) == 2
    assert f"[{code}]" in capsys.readouterr().err and not hub.bodies


def test_refusals_are_named(
    run: RunDir, hub: HubStandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(run)
    hub.refuses_commits = True
    assert pushed(str(run.root), *TO, "--public") == 2
    assert "[push.hub]" in (text := capsys.readouterr().err) and "may not write" in text and TOKEN not in text
    assert hub.private == {REPO: False}
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(run.root / "no-such-file"))
    before = len(hub.bodies)
    assert pushed(str(run.root), *TO) == 2
    assert "[push.token]" in capsys.readouterr().err and len(hub.bodies) == before
