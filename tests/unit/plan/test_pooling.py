"""A folder of sentence-transformers is trained as it makes its vectors, or the difference is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.config.schema import Config
from paceline.plan.model.files.folder_check import check_pooling


def folder(path: Path, mode: dict[str, object], normalize: bool, prompts: dict[str, str]) -> Path:
    """As sentence-transformers saves one; ``mode``: of its Pooling, in its old or its new form."""
    types = [("", "models.Transformer"), ("1_Pooling", "models.Pooling")]
    types += [("2_Normalize", "models.Normalize")] * normalize
    modules = [{"path": at, "type": f"sentence_transformers.{kind}"} for at, kind in types]
    (path / "1_Pooling").mkdir(parents=True)
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling/config.json").write_text(json.dumps({"include_prompt": True, **mode}))
    (path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    return path


NEW_CLS: dict[str, object] = {"pooling_mode": "cls"}
OLD_MEAN: dict[str, object] = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}

MEAN: dict[str, object] = {"pooling": "mean"}
POOLING, ANEW = "training.embedding.pooling", "pooling: last, to learn it anew: max is not supported"


@pytest.mark.parametrize(
    ("mode", "normalize", "prompts", "options", "wanted"),
    [
        (NEW_CLS, True, {}, None, [POOLING, "error", "pooling: cls"]),
        (NEW_CLS, True, {}, {"pooling": "cls"}, []),
        (NEW_CLS, True, {}, {"pooling": "mean"}, [POOLING, "warning", "pooling: cls"]),
        ({"pooling_mode": "lasttoken"}, True, {"query": ""}, None, []),
        (OLD_MEAN, False, {}, MEAN, ["training.embedding.normalize", "error", "normalize: false"]),
        (OLD_MEAN, True, {"query": "Q: "}, MEAN, ["data.query_prompt", "warning", 'query_prompt: "Q: "']),
        ({"pooling_mode": "max"}, True, {}, None, [POOLING, "error", ANEW]),
    ],
)
def test_another_way_to_make_vectors_is_named(
    mode: dict[str, object],
    normalize: bool,
    prompts: dict[str, str],
    options: dict[str, object] | None,
    wanted: list[str],
    tmp_path: Path,
) -> None:
    name = str(folder(tmp_path / "base", mode, normalize, prompts))
    training = {"algorithm": "embedding", **({"embedding": options} if options else {})}
    config = Config.model_validate({"model": {"name_or_path": name}, "training": training})
    found = [(f.where, f.severity.value, f.hint) for f in check_pooling(config)]
    assert found == ([tuple(wanted)] if wanted else [])
