"""A launcher that cannot start the ranks is said before the run has a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli.start import start
from paceline.core.errors import ConfigError
from paceline.launch.process_spec import LaunchOptions

ROOT = Path(__file__).resolve().parents[3]


def test_what_a_launcher_cannot_is_said_before_there_is_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_STORE_SECRET", "of both nodes, sixteen or more")
    monkeypatch.setattr("paceline.launch.start_run._NOTICE_SECONDS", 0.1)  # the other node never comes
    file = tmp_path / "t.yaml"
    file.write_text(
        "model: {config: {model_type: llama, hidden_size: 64, num_hidden_layers: 2, num_attention_heads:"
        f" 4, vocab_size: 768}}, tokenizer: {ROOT}/examples/tokenizer}}\ndata: {{train:"
        f" {ROOT}/examples/data/train.json, max_length: 128}}\ntraining: {{output_dir: {tmp_path}/out,"
        " use_cpu: true}\n"
    )
    asked = LaunchOptions(2, 2, 0, "127.0.0.1", 29777, launcher="deepspeed")
    with pytest.raises(ConfigError, match=r"launch\.one_node"):
        start(file, [], asked)
    assert not (tmp_path / "out").exists() and capsys.readouterr().out == "", "no folder, no plan"
