"""Layers, spellings and provenance."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.config.keys.valid_keys import RECOGNISED
from paceline.config.load import NotLoaded, load_config
from paceline.config.render.effective_values import render_show
from paceline.config.schema import Config, field_of
from paceline.core.errors import ConfigError
from paceline.rules import of_config


def codes(error: ConfigError) -> list[str]:
    return [d.code for d in error.diagnostics]


def test_later_layers_win_and_each_value_knows_its_layer(load):
    text = "training:\n  learning_rate: 1e-3\n  seed: 1\n  max_steps: 5\n  weight_decay: 0.1\n"
    environ = {
        "PACELINE_TRAINING__LEARNING_RATE": "2e-3",
        "PACELINE_TRAINING__SEED": "2",
        "PACELINE_CACHE": "/c",
        "OTHER": "x",
    }
    loaded = load(
        text, "training.seed=3", environ=environ, flags={"training.algorithm": "dpo", "launch.nproc": None}
    )
    training = loaded.config.training
    assert (training.learning_rate, training.seed, training.max_steps, training.algorithm) == (
        2e-3,
        3,
        5,
        "dpo",
    )
    where = {
        name: loaded.provenance[f"training.{name}"]
        for name in ("learning_rate", "seed", "max_steps", "algorithm", "optim")
    }
    assert {name: source.layer for name, source in where.items()} == {
        "learning_rate": "environment",
        "seed": "command line",
        "max_steps": "yaml",
        "algorithm": "command line",
        "optim": "default",
    }
    assert where["max_steps"].line == 4
    assert where["max_steps"].place().endswith("config.yaml:4")
    assert where["seed"].text == "training.seed=3"


@pytest.mark.parametrize("written", ["5e-5", '"5e-5"', "0.00005", "'0.5e-4'"])
def test_a_learning_rate_is_a_number(load, written):
    assert load(f"training:\n  learning_rate: {written}\n").config.training.learning_rate == 5e-5


@pytest.mark.parametrize("written", ["yes", "on", "True", '"true"', "1", "Y"])
def test_booleans_as_people_write_them(load, written):
    assert load(f"training: {{torch_compile: {written}}}").config.training.torch_compile is True


@pytest.mark.parametrize(
    ("key", "value"),
    [("eval_strategy", "no"), ("save_strategy", "no"), ("mixed_precision", "no"), ("eval_strategy", "false")],
)
def test_the_word_no_stays_a_word(load, key, value):
    assert getattr(load(f"training: {{{key}: {value}}}").config.training, key) == "no"


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "1e999", "true", "[1]", "fast", "007", ""])
def test_what_is_no_number_is_refused(refuse, value):
    (found,) = refuse(f"training:\n  learning_rate: {value}\n").diagnostics
    assert found.code == "config.type"
    assert found.where.endswith(":2")
    assert "learning_rate: 5e-05" in found.hint


def test_texts_keep_their_spelling(load):
    config = load("model: {revision: 1e10}\ntraining: {experiment_name: 010, run_name: 12}\n").config
    assert (config.model.revision, config.training.experiment_name, config.training.run_name) == (
        "1e10",
        "010",
        "12",
    )


SPELLINGS = [
    ("distributed_backend: gloo", "training.ddp_backend", "gloo"),
    ("find_unused_parameters: true", "training.ddp_find_unused_parameters", True),
    ("bucket_cap_mb: 50", "training.ddp_bucket_cap_mb", 50),
    ("dataloader: {batch_size: 3}", "training.per_device_train_batch_size", 3),
    ("dataloader: {num_workers: 3}", "training.dataloader_num_workers", 3),
    ("dataloader: {pin_memory: false}", "training.dataloader_pin_memory", False),
    ("per_gpu_train_batch_size: 3", "training.per_device_train_batch_size", 3),
    ("mixed_precision: bf16", "training.mixed_precision", "bf16"),
    ("fp16: true", "training.mixed_precision", "fp16"),
    ("bf16: false", "training.mixed_precision", "no"),
    ("warmup_ratio: 0.1", "training.warmup_steps", 0.1),
    ("evaluation_strategy: epoch", "training.eval_strategy", "epoch"),
    ("no_cuda: true", "training.use_cpu", True),
    ("activation_checkpointing: true", "training.gradient_checkpointing", True),
    ("stage: rm", "training.algorithm", "reward"),
    ("lr_scheduler: cosine", "training.lr_scheduler_type", "cosine"),
    ("cutoff_len: 512", "data.max_length", 512),
    ("max_length: 512", "data.max_length", 512),
    ("model_max_length: 512", "data.max_length", 512),
    ("max_seq_length: 512", "data.max_length", 512),
    ("model_name_or_path: gpt2", "model.name_or_path", "gpt2"),
    ("flash_attn: fa2", "model.attn_implementation", "flash_attention_2"),
    ("preprocessing_num_workers: 4", "data.num_proc", 4),
    ("val_size: 0.1", "data.validation_split", 0.1),
    ("train_on_prompt: true", "data.train_on", "all"),
    ("lora_target: all", "lora.target_modules", ("all-linear",)),
    ("lora_rank: 16", "lora.r", 16),
    ("quantization_bit: 4", "lora.quantization_bit", 4),
    ("additional_target: embed_tokens,lm_head", "lora.modules_to_save", ("embed_tokens", "lm_head")),
    ("use_rslora: true", "lora.use_rslora", True),
    ("double_quantization: false", "lora.double_quant", False),
    ("quantization_type: fp4", "lora.quantization_type", "fp4"),
    ("adapter_name_or_path: outputs/a", "lora.adapter_name_or_path", "outputs/a"),
    ("lora_target: '.*(q|v)_proj{1,2}'", "lora.target_modules", (".*(q|v)_proj{1,2}",)),
    ("resume_from_checkpoint: true", "training.resume_from_checkpoint", "latest"),
    ("report_to: none", "training.report_to", ()),
    ("report_to: all", "training.report_to", ("all",)),
    ("parallelism: {tp: 2}", "training.parallelism.tp_size", 2),
    ("parallelism_config: {tp_size: 2}", "training.parallelism.tp_size", 2),
    (
        "gradient_checkpointing_kwargs: '{\"use_reentrant\": false}'",
        "training.gradient_checkpointing_kwargs",
        {"use_reentrant": False},
    ),
]


@pytest.mark.parametrize(("line", "path", "value"), SPELLINGS, ids=[line for line, _, _ in SPELLINGS])
@pytest.mark.parametrize("text", ["training:\n  {}\n", "{}\n"], ids=["rooted", "flat"])
def test_a_spelling_goes_to_its_knob(load, text, line, path, value):
    found = load(text.format(line)).config
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_both_spellings_may_stand_when_equal(load):
    text = (
        "training:\n  per_device_train_batch_size: 4\n  dataloader: {batch_size: 4.0}\n  fp16: true\n "
        " mixed_precision: fp16\n"
    )
    training = load(text).config.training
    assert (training.per_device_train_batch_size, training.mixed_precision) == (4, "fp16")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("training:\n  per_device_train_batch_size: 4\n  dataloader:\n    batch_size: 8\n", (2, 4)),
        ("cutoff_len: 512\ntraining:\n  max_length: 1024\n", (1, 3)),
        ("training:\n  mixed_precision: fp16\n  bf16: true\n", (2, 3)),
        ("training:\n  warmup_steps: 100\n  warmup_ratio: 0.1\n", (2, 3)),
        ("training:\n  mixed_precision: bf16\n  bf16: false\n", (2, 3)),
        ("training: {seed: 1}\nseed: 2\n", (1, 2)),
    ],
)
def test_different_values_in_one_layer_name_both_lines(refuse, text, lines):
    (found,) = refuse(text).diagnostics
    assert found.code == "config.conflict"
    assert all(f"config.yaml:{line}" in found.where for line in lines)


def test_an_override_given_twice_is_a_conflict_and_a_layer_is_none(refuse, load):
    assert codes(refuse("seed: 1", "seed=2", "training.seed=3")) == ["config.conflict"]
    assert load("seed: 1", "seed=2").config.training.seed == 2


@pytest.mark.parametrize(
    ("text", "override", "result"),
    [
        ("bf16: true", "bf16=false", "no"),
        ("fp16: true", "bf16=true", "bf16"),
        ("bf16: true", "fp16=false", "bf16"),
        ("bf16: true", "mixed_precision=auto", "auto"),
        ("fp16: false\nbf16: true", "seed=1", "bf16"),
        ("fp16: false\nbf16: false", "seed=1", "no"),
    ],
)
def test_precision_flags_over_layers(load, text, override, result):
    assert load(text, override).config.training.mixed_precision == result


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("training:\n  learning_rte: 1\n", 2, "learning_rate"),
        ("modle:\n  name_or_path: x\n", 1, "model"),
        ("training:\n  parallelism:\n    tp_sise: 2\n", 3, "tp_size"),
        ("training:\n  dataloader:\n    num_worker: 2\n", 3, "num_workers"),
        ("data:\n  train:\n    - path: x\n      colums: {a: b}\n", 4, "columns"),
        ("data:\n  train:\n    path: x\n    colums: {a: b}\n", 4, "columns"),
        ("training:\n  packing: true\n", 2, "data:"),
        ("training:\n  rollout:\n    rewards:\n      - {name: length, weigt: 2}\n", 4, "weight"),
        (
            "training:\n  rollout:\n    rewards:\n      - {name: length, timeout: 2}\n",
            4,
            "one of name, weight, options; 'timeout' is a key of training.rollout.server:",
        ),
        ("training:\n  num_generations: 4\n", 2, "belongs under training.rollout:"),
        ("training:\n  beta: 0.1\n", 2, "belongs under training.dpo: or "),
        ("lora:\n  rnk: 2\n", 2, "rank"),
        ("training:\n  gradient_acumulation_steps: 2\n", 2, "gradient_accumulation_steps"),
        ("launch: {nprocs: 2}\n", 1, "nproc"),
        ("training:\n  deepspeed:\n    config_path: a\n    stage: 2\n", 2, "config_path"),
    ],
)
def test_an_unknown_key_at_any_depth_is_refused_with_the_nearest(refuse, text, line, hint):
    (found,) = refuse(text).diagnostics
    assert found.code in ("config.unknown_key", "config.deepspeed_both")
    assert found.where.endswith(f"config.yaml:{line}")
    assert hint in found.hint


def test_all_violations_are_given_at_once_in_the_order_of_the_file(refuse):
    error = refuse(
        "training:\n  optim: adamx\n  sed: 1\n  load_best_model_at_end: yes\n  max_grad_norm: -1\n "
        " push_to_hub: true\n",
        "training.seeed=1",
    )
    assert set(codes(error)) == {
        "config.value",
        "config.unknown_key",
        "save.best_strategy",
        "config.not_supported",
    }
    assert len(error.diagnostics) == 6
    lines = [int(d.where.rpartition(":")[2]) for d in error.diagnostics if "yaml:" in d.where]
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("seed", "config.override"),
        ("=3", "config.override"),
        ("a..b=3", "config.override"),
        ("training.nope=3", "config.unknown_key"),
        ("training.seed.x=3", "config.unknown_key"),
        ("training.seed=[1", "config.yaml_syntax"),
    ],
)
def test_bad_overrides(refuse, override, code):
    assert codes(refuse("seed: 1", override)) == [code]


@pytest.mark.parametrize("name", ["PACELINE_TRANING__SEED", "PACELINE_TRAINING__SEDE", "PACELINE_TRAINING__"])
def test_bad_variables(refuse, name):
    (found,) = refuse("seed: 1", environ={name: "3"}).diagnostics
    assert found.code in ("config.unknown_variable", "config.unknown_key")
    assert name in found.where


def test_values_on_the_command_line(load):
    loaded = load(
        "training: {lr_scheduler_type: polynomial, lr_scheduler_kwargs: {power: 1, lr_end: 0},"
        " eval_steps: 5}",
        "training.lr_scheduler_kwargs.power=3",
        "data.train=[{path: a, weight: 2}, b]",
        "training.eval_steps=",
        "training.report_to=wandb,tensorboard",
        "lora.r=4",
    )
    config = loaded.config
    assert config.training.lr_scheduler_kwargs == {"power": 3, "lr_end": 0}
    assert [(d.path, d.weight) for d in config.data.train] == [("a", 2.0), ("b", 1.0)]
    assert config.training.eval_steps is None
    assert config.training.report_to == ("wandb", "tensorboard")
    assert config.lora is not None
    assert config.lora.r == 4


def test_a_key_below_a_value_takes_its_place(load):
    loaded = load("training: {algorithm_options: {a: 5}}", "training.algorithm_options.a.b=1")
    assert loaded.config.training.algorithm_options == {"a": {"b": 1}}


def test_a_flat_file_of_llama_factory(load):
    text = """\
model_name_or_path: m
stage: sft
do_train: true
finetuning_type: full
dataset: a.jsonl,b.jsonl
template: llama3
cutoff_len: 1600
max_samples: 1000
overwrite_cache: true
plot_loss: true
overwrite_output_dir: true
output_dir: o
warmup_ratio: 0.1
fp16: true
val_size: 0.1
eval_strategy: steps
eval_steps: 10
"""
    loaded = load(text)
    config = loaded.config
    assert [(d.path, d.max_rows) for d in config.data.train] == [("a.jsonl", 1000), ("b.jsonl", 1000)]
    assert (config.data.max_length, config.lora, config.training.mixed_precision) == (1600, None, "fp16")
    noted = {note.found.split(":")[0] for note in loaded.notes}
    assert {"template", "overwrite_cache", "plot_loss", "do_train", "warmup_ratio"} <= noted


def test_quantised_full_training_is_refused(refuse, load):
    assert codes(refuse("finetuning_type: full\nquantization_bit: 4\n")) == ["peft.quant_full"]
    config = load("finetuning_type: lora\nquantization_bit: 4\n").config
    assert config.lora is not None
    assert config.lora.quantization_bit == 4


def test_lora_is_on_by_its_section_and_off_by_null(load):
    assert load("lora: {}\n").config.lora is not None
    assert load("seed: 1\n").config.lora is None
    assert load("lora: {r: 4}\n", "lora=null").config.lora is None


@pytest.mark.parametrize(
    "text",
    [
        "hub_token: hf_x",
        "training: {hub_token: hf_x}",
        "wandb_api_key: 98712365401",
        "data: {train: 'https://me:pw@host/a'}",
    ],
)
def test_secrets_are_refused_and_never_printed(refuse, text):
    error = refuse(text)
    assert codes(error) == ["sec.secret_on_cli"]
    assert not any(word in str(error) for word in ("hf_x", "pw@", "98712365401"))


def test_innocent_names_are_no_secrets(load):
    load("model: {add_tokens: ['<a>'], add_special_tokens: ['<b>']}\ngeneration: {max_new_tokens: 3}\n")


def test_every_key_of_training_arguments_is_known():
    """Read from the sources of Transformers, without importing torch."""
    import ast
    import importlib.util

    from paceline.config.keys.aliases import ALIASES

    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / "training_args.py").read_text(encoding="utf-8"))
    (body,) = [
        node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments"
    ]
    names = {
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    names = {name for name in names if not name.startswith("_") and name.islower()}
    assert len(names) > 100
    unknown = {
        name
        for name in names
        if field_of(f"training.{name}") is None and name not in ALIASES and name not in RECOGNISED
    }
    assert unknown == set()


def test_recognised_keys_are_never_silent(load, refuse):
    for name, key in RECOGNISED.items():
        if "." in name:
            continue
        written = "17"
        if key.refuses(17):
            assert "config.not_supported" in codes(refuse(f"training: {{{name}: {written}}}")), name
        elif "token" not in name:
            assert load(f"training: {{{name}: {written}}}").notes, name


def test_json_both_ways_and_digest(load):
    text = (
        "model: {name_or_path: m}\ndata: {train: [a, {path: b, weight: 2}]}\ntraining: {parallelism:"
        " {tp_size: 2}}\nlora: {r: 4}\n"
    )
    config = load(text).config
    assert Config.from_json(config.to_json()) == config
    assert Config.from_json(config.to_json()).digest() == config.digest()
    same = [
        "training.output_dir=x",
        "training.logging_steps=3",
        "training.resume_from_checkpoint=latest",
        "launch.nproc=2",
        "training.report_to=none",
        "training.experiment_name=y",
        "training.save_steps=7",
        "data.cache_dir=c",
        "training.dataloader_num_workers=2",
    ]
    assert load(text, *same).config.digest() == config.digest()
    for other in (
        "training.learning_rate=1e-3",
        "training.seed=1",
        "data.max_length=77",
        "model.revision=x",
        "lora.r=5",
        "training.max_steps=3",
    ):
        assert load(text, other).config.digest() != config.digest()
    with pytest.raises(ConfigError, match="config.not_a_config"):
        Config.from_json({"training": {"nope": 1}})


def test_a_config_is_frozen(load):
    with pytest.raises(Exception, match="frozen"):
        load("seed: 1").config.training.seed = 2


def test_show_names_every_value_in_100_columns(load):
    loaded = load("model: gpt2\ntraining:\n  learning_rate: 1e-4\n", "training.seed=3")
    text = render_show(loaded)
    assert all(f"  {name} " in text for name in type(loaded.config.training).model_fields)
    (line,) = [line for line in render_show(loaded, only_set=True).splitlines() if "seed" in line]
    assert line.split() == ["seed", "3", "command", "line", "training.seed=3"]
    assert "config.yaml:3" in text
    places = [line for line in text.splitlines() if "<-" not in line]
    assert max(map(len, places)) <= 100


def test_defaults_alone_load():
    loaded = load_config(None)
    assert loaded.config == Config()
    assert {source.layer for source in loaded.provenance.values()} == {"default"}


def test_importing_config_imports_nothing_heavy():
    script = (
        "import sys, paceline.config.load, paceline.config.render.effective_values;"
        " names = ('torch', 'transformers', 'numpy', 'datasets', 'rich');"
        " print([m for m in names if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240
    )
    assert out.stdout.strip() == "[]"


def test_sources_are_plain_data(load):
    source = load("seed: 1").provenance["training.seed"]
    assert dataclasses.asdict(source)["layer"] == "yaml"


@pytest.mark.parametrize(
    "text",
    [
        "finetuning_type: freeze",
        "create_new_adapter: true",
        "quantization_method: hqq",
        "pissa_init: true",
    ],
)
def test_llama_factory_flags_that_are_not_built_are_refused_by_name(load, text):
    with pytest.raises(ConfigError, match=text.split(":")[0]):
        load(f"lora: {{}}\n{text}\n")
    if text.endswith("true"):  # switched off they ask for nothing
        load(f"lora: {{}}\n{text.replace('true', 'false')}\nquantization_method: bnb\n")


@pytest.mark.parametrize(
    "inside, neighbour, value",
    [
        (
            "rollout: {max_completion_length: 12, rewards: [{name: numeric, wieght: 2}, {nmae: x}]}",
            "max_completion_length",
            12,
        ),
        ("rollout: {max_completion_length: 12, temperature: hot}", "max_completion_length", 12),
        ("ppo: {kl_coef: 0.25, cliprange: wide}", "kl_coef", 0.25),
        ("parallelism: {tp_size: 2, cp_size: two}", "tp_size", 2),
    ],
)
def test_a_wrong_key_leaves_its_neighbours_as_they_are_written(tmp_path, inside, neighbour, value):
    """Rules speak of what is sound in a config: of its values, not of defaults in their place."""
    file = tmp_path / "c.yaml"
    file.write_text(
        f"model: {{name_or_path: m}}\ndata: {{train: t, max_length: 64}}\ntraining:\n  {inside}\n"
    )
    with pytest.raises(NotLoaded) as error:
        load_config(str(file), rules=of_config)
    section = getattr(error.value.partial.config.training, inside.partition(":")[0])
    assert getattr(section, neighbour) == value
    assert {d.code for d in error.value.diagnostics} <= {"config.unknown_key", "config.value", "config.type"}


def test_streaming_within_data_is_refused_as_it_is_at_the_top(refuse):
    for text in ("streaming: true", "data: {streaming: true}"):
        [found] = [one for one in refuse(text).diagnostics if one.code == "config.not_supported"]
        assert "not streamed" in found.what, text
