"""``trust_remote_code: true`` of other programs' files: off with a warning where no code is needed,
refused where code lies unpinned.
"""

from __future__ import annotations

import pytest

SCRATCH = (
    "model: {config: {model_type: llama, hidden_size: 8}, tokenizer: t, trust_remote_code: true}\ndata:"
    " {train: x}\n"
)
FACTORY = (
    "model_name_or_path: org/model\ntrust_remote_code: true\nstage: sft\ndo_train: true\nfinetuning_type:"
    " full\ndataset: x.jsonl\n"
)


@pytest.mark.parametrize(("text", "line"), [(SCRATCH, 1), (FACTORY, 2)])
def test_where_no_code_is_pinned_none_runs_and_it_is_said(load, text: str, line: int) -> None:
    loaded = load(text)
    assert loaded.config.model.trust_remote_code is False
    (said,) = [n for n in loaded.notes if n.code == "sec.no_remote_code"]
    assert said.severity.value == "warning" and said.where.endswith(f"config.yaml:{line}")


@pytest.mark.parametrize("revision", ["main", "v1.0", "0123456"])
def test_a_branch_is_no_pin(refuse, revision: str) -> None:
    text = (
        f"model: {{name_or_path: org/model, trust_remote_code: true, revision: '{revision}'}}\ndata: {{train:"
        " x}\n"
    )
    assert [d.code for d in refuse(text).diagnostics] == ["sec.trust_remote_code"]


def test_a_pinned_commit_keeps_it(load) -> None:
    text = (
        f"model: {{name_or_path: org/model, trust_remote_code: true, revision: {'0123456789' * 4}}}\ndata:"
        " {train: x}\n"
    )
    loaded = load(text)
    assert loaded.config.model.trust_remote_code is True
    assert not [n for n in loaded.notes if n.code == "sec.no_remote_code"]


def test_a_folder_with_code_is_refused_and_one_without_passes(load, refuse, tmp_path) -> None:
    (tmp_path / "m").mkdir()
    text = f"model: {{name_or_path: {tmp_path}/m, trust_remote_code: true}}\ndata: {{train: x}}\n"
    load(text)
    (tmp_path / "m" / "config.json").write_text('{"auto_map": {"AutoModel": "modeling.Mine"}}')
    (tmp_path / "m" / "modeling.py").write_text("")
    assert [d.code for d in refuse(text).diagnostics] == ["sec.trust_remote_code"]
