"""The sources' spelling of FSDP's wrap policy is taken and said, wherever FSDP's settings stand."""

from __future__ import annotations

import pytest

BASE = "model: {name_or_path: a/b}\ndata: {train: x.jsonl}\n"


@pytest.mark.parametrize(
    "key", ["fsdp_wrap_policy", "wrap_policy", "fsdp_auto_wrap_policy", "auto_wrap_policy"]
)
@pytest.mark.parametrize(
    ("word", "plain"),
    [("SIZE_BASED_WRAP", "size"), ("TRANSFORMER_BASED_WRAP", "transformer"), ("NO_WRAP", "none")],
)
@pytest.mark.parametrize("home", ["config", "accelerate"])
def test_the_wrap_policy_is_taken(load, tmp_path, key: str, word: str, plain: str, home: str) -> None:
    if home == "config":
        text = (
            BASE
            + f"training:\n  fsdp: full_shard\n  fsdp_config: {{{key}: {word}, fsdp_min_num_params: 1000}}\n"
        )
    else:
        file = (
            f"distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n  {key}: {word}\n "
            " fsdp_min_num_params: 1000\n"
        )
        (tmp_path / "a.yaml").write_text(file)
        text = BASE + "training: {accelerate_config: a.yaml}\n"
    loaded = load(text)
    assert loaded.config.training.fsdp_config["auto_wrap_policy"] == plain
    said = [
        n
        for n in loaded.notes
        if n.code == "config.translated" and f"{key} is read as auto_wrap_policy" in n.what
    ]
    assert bool(said) == ("auto" not in key)
