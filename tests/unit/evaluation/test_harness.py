"""``paceline evaluate --lm-eval``: lm-evaluation-harness on our models has its own ``hf`` model's numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support import write_tokenizer

from paceline.core.errors import ConfigError
from paceline.evaluation import harness

TASK = """task: paceline_sums
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""


def test_tasks_are_names_and_files_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "find_spec", lambda name: name)
    file = tmp_path / "sums.yaml"
    file.write_text(TASK)
    found = harness.tasks_of(f"arc_easy, {file},{file}")
    assert found == (["arc_easy", "paceline_sums", "paceline_sums"], [str(tmp_path)])
    file.write_text("dataset_path: json\n")
    with pytest.raises(ConfigError, match="evaluation.lm_eval.*no file of a task"):
        harness.tasks_of(str(file))
    monkeypatch.setattr(harness, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="evaluation.lm_eval.*not installed"):
        harness.tasks_of("arc_easy")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_numbers_are_its_own_to_the_last_digit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager
    from transformers import LlamaConfig, LlamaForCausalLM

    model = write_tokenizer(tmp_path / "model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=320, initializer_range=0.3, **sizes)).save_pretrained(model)
    rows = [
        {"q": f"{a} + {b} =", "choices": [str(a + b), str(a * b + 1), str(a)], "gold": 0}
        for a in range(1, 6)
        for b in range(1, 5)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.yaml").write_text(TASK.replace("ROWS", str(tmp_path / "rows.jsonl")))
    assert harness.main([str(model), "--tasks", str(tmp_path / "sums.yaml"), "--json"]) == 0
    out = capsys.readouterr().out
    (ours,) = json.loads(out[out.index("[\n") :])  # libraries may print while they are imported
    own = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(model), "dtype": "float32"},
        tasks=["paceline_sums"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        batch_size=8,
        device="cpu",
    )["results"]["paceline_sums"]
    found = ours["lm_eval"]["paceline_sums"]
    assert found and 0 < found["acc,none"] < 1
    assert found == {name: own[name] for name in found}
