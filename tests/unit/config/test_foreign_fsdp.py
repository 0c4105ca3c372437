"""FSDP strings and keys of Transformers and of both versions of Accelerate in one normal form; XLA keys
are known and not started.
"""

from __future__ import annotations

import json

import pytest

from paceline.core.diagnostics import Severity
from paceline.rules import Facts, at_start, check

WORDS = {
    "full_shard": ("full_shard", {"reshard_after_forward": True}),
    "shard_grad_op auto_wrap": (
        "shard_grad_op",
        {"auto_wrap_policy": "transformer", "reshard_after_forward": False},
    ),
    "[full_shard, offload]": ("full_shard", {"cpu_offload": True, "reshard_after_forward": True}),
    "full shard": ("full_shard", {"reshard_after_forward": True}),
    "FULL-SHARD auto wrap": (
        "full_shard",
        {"auto_wrap_policy": "transformer", "reshard_after_forward": True},
    ),
    "[shard grad op, auto-wrap]": (
        "shard_grad_op",
        {"auto_wrap_policy": "transformer", "reshard_after_forward": False},
    ),
    "hybrid shard zero2": ("hybrid_shard_zero2", {"reshard_after_forward": False}),
    "hybrid_shard": ("hybrid_shard", {"reshard_after_forward": True}),
    "hybrid_shard_zero2": ("hybrid_shard_zero2", {"reshard_after_forward": False}),
    "NO_SHARD": ("no_shard", {"reshard_after_forward": False}),
    "true": ("full_shard", {"reshard_after_forward": True}),
    "auto_wrap": ("full_shard", {"auto_wrap_policy": "transformer", "reshard_after_forward": True}),
    "''": (None, None),
    "false": (None, None),
}


@pytest.mark.parametrize("written", WORDS)
def test_the_words(load, written):
    t = load(f"training:\n  fsdp: {written}\n").config.training
    assert (t.fsdp, t.fsdp_config) == WORDS[written]
    if t.fsdp:
        again = load(json.dumps({"training": {"fsdp": t.fsdp, "fsdp_config": t.fsdp_config}}))
        assert (again.config.training.fsdp, again.config.training.fsdp_config) == WORDS[written]
        assert not [n for n in again.notes if n.code == "config.foreign_not_taken"]


KEYS = [
    ("fsdp_version: 1", {"version": 1}),
    ("min_num_params: 2000", {"min_num_params": 2000, "auto_wrap_policy": "size"}),
    ("fsdp_min_num_param: 1e8", {"min_num_params": 100_000_000, "auto_wrap_policy": "size"}),
    ("fsdp_auto_wrap_policy: NO_WRAP", {"auto_wrap_policy": "none"}),
    (
        "transformer_layer_cls_to_wrap: LlamaDecoderLayer",
        {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
    ),
    ("fsdp_transformer_layer_cls_to_wrap: A,B", {"transformer_layer_cls_to_wrap": ["A", "B"]}),
    ("fsdp_backward_prefetch: BACKWARD_POST", {"backward_prefetch": "backward_post"}),
    ("fsdp_backward_prefetch_policy: NO_PREFETCH", {"backward_prefetch": "none"}),
    ("forward_prefetch: 'true'", {"forward_prefetch": True}),
    ("fsdp_offload_params: true", {"cpu_offload": True}),
    ("fsdp_cpu_ram_efficient_loading: false", {"cpu_ram_efficient_loading": False}),
    ("sync_module_states: true", {"sync_module_states": True}),
    ("use_orig_params: false", {"use_orig_params": False}),
    ("limit_all_gathers: true", {"limit_all_gathers": True}),
    ("fsdp_state_dict_type: SHARDED_STATE_DICT", {"state_dict_type": "sharded_state_dict"}),
    ("activation_checkpointing: true", {"activation_checkpointing": True}),
]


@pytest.mark.parametrize(("written", "normal"), KEYS)
def test_a_key(load, written, normal):
    t = load(f"training:\n  fsdp: full_shard\n  fsdp_config:\n    {written}\n").config.training
    assert t.fsdp_config == {**normal, "reshard_after_forward": True}
    assert t.gradient_checkpointing is normal.get("activation_checkpointing", False)


@pytest.mark.parametrize(
    ("words", "written", "sharding"),
    [
        ("true", "reshard_after_forward: false", "shard_grad_op"),
        ("full_shard", "fsdp_reshard_after_forward: SHARD_GRAD_OP", "shard_grad_op"),
        ("hybrid_shard", "reshard_after_forward: false", "hybrid_shard_zero2"),
        ("true", "fsdp_sharding_strategy: 5", "hybrid_shard_zero2"),
        ("true", "fsdp_sharding_strategy: FULL_SHARD", "full_shard"),
    ],
)
def test_the_config_owns_the_sharding_and_a_contradiction_is_said(load, words, written, sharding):
    loaded = load(f"training:\n  fsdp: {words}\n  fsdp_config:\n    {written}\n")
    assert loaded.config.training.fsdp == sharding
    first = "full_shard" if words == "true" else words
    assert any(n.code == "config.foreign_not_taken" for n in loaded.notes) is (first != sharding)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("fsdp: full_shrad", "fsdp.value", 2),
        ("fsdp: full_shard no_shard", "fsdp.value", 2),
        ("fsdp: hybrid_shard offload", "fsdp.offload", 2),
        ("fsdp: true\n  fsdp_config:\n    version: 3", "fsdp.value", 4),
        ("fsdp: true\n  fsdp_config:\n    auto_wrap_policy: BY_LUCK", "fsdp.value", 4),
        ("fsdp: true\n  fsdp_config:\n    sharding_strategy: 9", "fsdp.value", 4),
        ("fsdp: true\n  fsdp_config:\n    use_orig_params: maybe", "fsdp.value", 4),
        ("fsdp: true\n  fsdp_config:\n    ignored_modules: a.*", "fsdp.not_built", 4),
        ("fsdp: true\n  fsdp_config:\n    fsdp_bakward_prefetch: x", "fsdp.unknown_key", 4),
    ],
)
def test_what_is_wrong_is_named_with_its_line(refuse, text, code, line):
    (found,) = refuse(f"training:\n  {text}\n").diagnostics
    assert (found.code, found.where.rpartition(":")[2]) == (code, str(line))
    assert found.hint


def test_a_file_may_hold_words_and_settings(load, tmp_path):
    both = {
        "_note": "x",
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"fsdp_version": 2, "reshard_after_forward": False},
    }
    (tmp_path / "fsdp2.json").write_text(json.dumps(both))
    t = load("training:\n  fsdp_config: fsdp2.json\n").config.training
    assert t.fsdp == "shard_grad_op"
    assert t.fsdp_config == {"auto_wrap_policy": "transformer", "version": 2, "reshard_after_forward": False}


def test_settings_without_fsdp_shard_nothing_as_in_transformers(load):
    loaded = load("training:\n  fsdp_config: {min_num_params: 100}\n")
    assert loaded.config.training.fsdp is None
    assert any("shards nothing" in n.what for n in loaded.notes)
    strategy = load(
        "training:\n  distributed_strategy: fsdp\n  fsdp_config: {reshard_after_forward: false}\n"
    )
    assert strategy.config.training.fsdp == "shard_grad_op"
    assert not [n for n in strategy.notes if "shards nothing" in n.what]


@pytest.mark.parametrize(
    ("installed", "says"), [(None, "not installed"), (False, "not installed"), (True, "no strategy")]
)
def test_xla_is_explained_and_not_started(load, installed, says):
    text = (
        "training:\n  fsdp: full_shard\n  fsdp_config: {xla: true, xla_fsdp_settings: {compute_dtype:"
        " bfloat16}, xla_fsdp_grad_ckpt: true}\n"
    )
    loaded = load(text)
    assert {n.found for n in loaded.notes} >= {"xla", "xla_fsdp_settings", "xla_fsdp_grad_ckpt"}
    (found,) = (
        d
        for d in check(loaded.config, Facts(torch_xla=installed), starting=True, provenance=loaded.provenance)
        if d.code == "xla.not_run"
    )
    assert found.severity is Severity.WARNING
    assert says in found.what
    assert "torch_xla" in found.hint
    assert at_start([found])[0].severity is Severity.ERROR
    assert not [
        d for d in check(loaded.config, Facts(), provenance=loaded.provenance) if d.code == "xla.not_run"
    ]


@pytest.mark.parametrize("backend", ["mpi", "ccl"])
def test_a_backend_that_this_torch_lacks_is_refused_with_where_it_comes_from(load, backend):
    loaded = load(f"training:\n  ddp_backend: {backend}\n")
    (found,) = check(loaded.config, Facts(backends=frozenset(["gloo"])), provenance=loaded.provenance)
    assert found.code == "back.not_built"
    assert {"mpi": "source", "ccl": "oneccl"}[backend] in found.hint
    assert not check(
        loaded.config, Facts(backends=frozenset(["gloo", backend])), provenance=loaded.provenance
    )


@pytest.mark.parametrize(
    ("settings", "policy", "left"),
    [
        (
            "auto_wrap_policy: SIZE_BASED_WRAP, min_num_params: 100, transformer_layer_cls_to_wrap: A",
            "size",
            "min_num_params",
        ),
        (
            "auto_wrap_policy: TRANSFORMER_BASED_WRAP, min_num_params: 100, transformer_layer_cls_to_wrap: A",
            "transformer",
            "transformer_layer_cls_to_wrap",
        ),
        ("fsdp_wrap_policy: SIZE_BASED_WRAP, min_num_param: 100", "size", "min_num_params"),
        ("wrap_policy: NO_WRAP, min_num_params: 100", "none", ""),
    ],
)
@pytest.mark.parametrize("words", ["full_shard", "full_shard auto_wrap"])
def test_a_named_policy_decides_and_the_other_is_said_to_have_no_effect(load, words, settings, policy, left):
    loaded = load(f"training:\n  fsdp: {words}\n  fsdp_config: {{{settings}}}\n")
    options = loaded.config.training.fsdp_config
    assert options["auto_wrap_policy"] == policy
    assert {"min_num_params", "transformer_layer_cls_to_wrap"} & set(options) == {left} - {""}
    dropped = settings.count("min_num_param") + settings.count("transformer_layer") - bool(left)
    assert len([n for n in loaded.notes if "no effect with auto_wrap_policy" in n.what]) == dropped


@pytest.mark.parametrize("words", ["full_shard", "full_shard auto_wrap"])
def test_sizes_and_classes_without_a_policy_are_refused_whatever_else_is_written(refuse, words):
    text = (
        f"training:\n  fsdp: {words}\n  fsdp_config:\n    transformer_layer_cls_to_wrap: A\n   "
        " min_num_params: 5\n"
    )
    (found,) = refuse(text).diagnostics
    assert (found.code, found.where.rpartition(":")[2]) == ("fsdp.value", "5")
    assert "exclude each other" in found.what


def test_auto_wrap_with_sizes_alone_wraps_by_size(load):
    loaded = load("training:\n  fsdp: full_shard auto_wrap\n  fsdp_config: {min_num_params: 5}\n")
    assert loaded.config.training.fsdp_config["auto_wrap_policy"] == "size"
