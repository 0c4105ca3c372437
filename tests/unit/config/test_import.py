"""`paceline config import`: other systems' configs with their defaults, and the verdict on every key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jinja2 import Environment

from paceline.config.import_export.argument_tables import defaults, table
from paceline.config.import_export.commands.command_line import read_command
from paceline.config.import_export.import_config import TRANSLATORS, import_config, import_data
from paceline.config.import_export.programs import trl
from paceline.config.import_export.programs.llamafactory_templates import jinja
from paceline.config.import_export.verdicts import Imported, KeyVerdict, as_json, as_text
from paceline.config.import_export.write_yaml import accepted, stands
from paceline.config.load import load_config
from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.core.json_types import as_object
from paceline.plan.model.parameter_list import projected, targets_of
from paceline.rules import of_config

TRL = """model_name_or_path: some/model
dataset_name: rows.jsonl
learning_rate: 3.0e-5
use_peft: true
output_dir: out
seed: 5
"""
FACTORY = """model_name_or_path: some/model
stage: sft
finetuning_type: lora
dataset: alpaca_en_demo
template: qwen
cutoff_len: 1024
lora_rank: 4
max_samples: 100
bf16: true
"""
FULL = FACTORY.replace("lora\n", "full\n")
AXOLOTL = """base_model: some/model
datasets:
  - path: rows.jsonl
    type: chat_template
    field_messages: turns
adapter: qlora
load_in_4bit: true
lora_r: 4
lora_alpha: 8
lora_target_linear: true
learning_rate: 0.0002
val_set_size: 0.1
evals_per_epoch: 4
num_epochs: 2
saves_per_epoch: 1
wandb_project:
"""


def imported(tmp_path: Path, text: str, **how: str) -> tuple[Imported, Config, str]:
    """The verdicts, the config that our reading makes of the composed YAML, and the YAML."""
    file = tmp_path / "theirs.yaml"
    file.write_text(text)
    found = import_config(str(file), **how)
    made, problems = accepted(found, "test", of_config)
    assert problems == []
    mapped = [f for f in found.findings.values() if f.verdict is KeyVerdict.MAPPED and f.line]
    assert [f.key for f in mapped if not any(stands(found, to) for to in f.to)] == [], "said to be kept"
    ours = tmp_path / "ours.yaml"
    ours.write_text(made.text)
    return found, load_config(str(ours)).config, made.text


def test_trl_with_its_defaults(tmp_path: Path) -> None:
    found, config, text = imported(tmp_path, TRL)
    assert found.system == "TRL" and found.share() == 1
    training = config.training
    assert (training.learning_rate, training.gradient_checkpointing, training.mixed_precision) == (
        3e-5,
        True,
        "bf16",
    )
    assert (config.data.packing, config.data.max_length, config.data.train_on) == (
        False,
        1024,
        "completion",  # a conversation whole, of prompt and completion the completion
    )
    assert config.lora is not None
    assert (config.lora.r, config.lora.alpha, config.lora.dropout) == (16, 32, 0.05)
    assert list(config.lora.target_modules) == ["q_proj", "v_proj"]
    assert training.report_to == () and (training.seed, config.data.seed) == (5, None)
    assert "learning_rate: 3e-05  # learning_rate, line 3" in text


@pytest.mark.parametrize(("field", "columns"), [("messages", {}), ("text", {}), ("body", {"text": "body"})])
def test_trls_text_field_renames_no_turns(tmp_path: Path, field: str, columns: dict[str, str]) -> None:
    """TRL looks for turns before it reads the field."""
    _, config, _ = imported(tmp_path, f"{TRL}\ndataset_text_field: {field}\n")
    assert dict(config.data.train[0].columns) == columns


def test_loss_follows_the_rows(tmp_path: Path) -> None:
    """TRL's loss is on completions where rows have them."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "2+2", "completion": "4"}))
    _, config, _ = imported(tmp_path, TRL)
    assert config.data.train_on == "assistant"


def test_llamafactory_with_its_defaults(tmp_path: Path) -> None:
    found, config, _ = imported(tmp_path, FACTORY)
    assert found.share() == 1
    assert config.lora is not None and (config.lora.r, config.lora.alpha) == (4, 8)
    assert config.lora.target_modules == ("all-linear",)
    assert (config.data.packing, config.data.max_length) == (False, 1024)
    assert (config.data.train[0].path, config.data.train[0].max_rows) == ("data/alpaca_en_demo.json", 100)
    assert config.training.gradient_checkpointing and config.training.learning_rate == 5e-5
    written = Environment().from_string(
        str(config.model.chat_template)
        .replace("generation", "filter upper")
        .replace("endfilter upper", "endfilter")
    )
    text = written.render(
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    )
    assert text == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nYES<|IM_END|>\n"
    )


def test_names_of_dataset_info(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    info = {"mine": {"file_name": "m.json", "formatting": "sharegpt", "columns": {"messages": "talk"}}}
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps(info))
    _, config, _ = imported(tmp_path, FACTORY.replace("alpaca_en_demo", "mine"))
    row = config.data.train[0]
    assert (row.path, row.format, row.columns) == ("data/m.json", "sharegpt", {"conversations": "talk"})
    found, *_ = imported(tmp_path, FACTORY.replace("alpaca_en_demo", "other"))
    assert found.findings["dataset"].verdict is KeyVerdict.LOST


def test_axolotl_with_its_defaults(tmp_path: Path) -> None:
    found, config, _ = imported(tmp_path, AXOLOTL)
    assert found.share() == 1
    training = config.training
    assert (config.data.max_length, training.per_device_train_batch_size, training.lr_scheduler_type) == (
        512,
        1,
        "cosine",
    )
    assert (training.eval_strategy, training.eval_steps, training.save_steps) == ("steps", 0.125, 0.5)
    assert (training.warmup_steps, training.save_total_limit, training.eval_on_start) == (0.03, 4, True)
    assert config.lora is not None and config.lora.quantization_bit == 4
    assert config.data.train[0].columns == {"messages": "turns"} and config.data.on_too_long == "skip"


@pytest.mark.parametrize(
    "line, verdict",
    [
        ("use_galore: true", KeyVerdict.LOST),
        ("use_galore: false", KeyVerdict.NO_EFFECT),
        ("galore_rank: 4", KeyVerdict.NO_EFFECT),
        ("pure_bf16: true", KeyVerdict.DIFFERS),
        ("learning_rats: 1", KeyVerdict.LOST),
        ("optim: grokadamw", KeyVerdict.LOST),  # refused by our own reading
        ("plot_loss: true", KeyVerdict.NO_EFFECT),
    ],
)
def test_verdicts(tmp_path: Path, line: str, verdict: KeyVerdict) -> None:
    found, _, text = imported(tmp_path, FACTORY + line + "\n")
    key = line.partition(":")[0]
    assert found.findings[key].verdict is verdict and found.findings[key].says
    assert found.findings[key].line == FACTORY.count("\n") + 1
    assert (f"{key} (line" in text) == (verdict in (KeyVerdict.LOST, KeyVerdict.DIFFERS))


@pytest.mark.parametrize(
    ("text", "pure"),
    [
        (FACTORY.replace("lora\n", "full\n").replace("bf16:", "pure_bf16:"), True),
        (FACTORY.replace("lora\n", "full\n"), False),
        (TRL.replace("use_peft: true", "dtype: bfloat16"), True),
        (TRL.replace("use_peft: true", "torch_dtype: bfloat16\nbf16: false"), True),
        (TRL.replace("use_peft: true", "dtype: float32"), False),
        (TRL + "dtype: bfloat16\n", False),
        (TRL.replace("use_peft: true", "dtype: bfloat16\nfsdp: full_shard"), False),
        ("base_model: some/model\ndatasets: [{path: rows.jsonl, type: chat_template}]\nbf16: true\n", True),
        ("base_model: some/model\ndatasets: [{path: rows.jsonl, type: chat_template}]\nbf16: auto\n", True),
        (AXOLOTL + "bf16: true\n", False),
    ],
)
def test_weights_in_bfloat16_alone(tmp_path: Path, text: str, pure: bool) -> None:
    """Transformers' Trainer steps the weights that it is given; adapters and engines have float32 ones."""
    found, config, _ = imported(tmp_path, text)
    assert config.training.pure_bf16 is pure
    keys = ("bf16", "pure_bf16", "dtype", "torch_dtype")
    assert {f.verdict for key, f in found.findings.items() if key in keys} == {KeyVerdict.MAPPED} or not pure
    assert not pure or config.training.mixed_precision in ("bf16", "auto")


@pytest.mark.parametrize(
    ("text", "key", "init"),
    [
        (FACTORY + "pissa_init: true\npissa_iter: -1\n", "pissa_init", "pissa"),
        (FACTORY + "pissa_init: true\n", "pissa_init", "pissa"),  # 16 iterations of a random approximation
        (AXOLOTL + "peft_init_lora_weights: olora\n", "peft_init_lora_weights", "olora"),
        (AXOLOTL + "peft_init_lora_weights: true\n", "peft_init_lora_weights", None),
        (AXOLOTL + "peft_init_lora_weights: gaussian\n", "peft_init_lora_weights", None),
    ],
)
def test_adapters_that_begin_with_a_part_of_the_base(
    tmp_path: Path, text: str, key: str, init: str | None
) -> None:
    found, config, _ = imported(tmp_path, text)
    assert config.lora is not None and config.lora.init_lora_weights == init
    kept = init is not None or "weights: true" in text
    exact = "pissa_init: true\n" not in text or "pissa_iter" in text
    assert found.findings[key].verdict is (
        KeyVerdict.LOST if not kept else KeyVerdict.MAPPED if exact else KeyVerdict.DIFFERS
    )


@pytest.mark.parametrize("stage", ["dpo", "kto", "ppo"])
def test_llamafactorys_reference_below_a_trained_adapter_is_the_base(tmp_path: Path, stage: str) -> None:
    text = FACTORY.replace("sft", stage) + "adapter_name_or_path: some/adapter\n"
    _, config, _ = imported(tmp_path, text)
    assert getattr(config.training, stage).ref_model == "some/model"
    _, config, _ = imported(tmp_path, text + "ref_model: some/other\n")
    assert getattr(config.training, stage).ref_model == "some/other"
    _, config, _ = imported(tmp_path, FACTORY.replace("sft", stage))
    assert getattr(config.training, stage).ref_model is None


@pytest.mark.parametrize(
    "text",
    [
        TRL.replace("use_peft: true", "optim: galore_adamw\noptim_target_modules: [mlp]\nfsdp: full_shard")
        + "weight_decay: 0.1\n",
        FULL + "use_galore: true\ndeepspeed: ds.json\n",
        FULL.replace("bf16:", "pure_bf16:") + "deepspeed: ds.json\n",
    ],
)
def test_what_an_engine_shards_is_not_written(tmp_path: Path, text: str) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    found, config, _ = imported(tmp_path, text.replace("ds.json", str(tmp_path / "ds.json")))
    training = config.training
    assert training.optim != "galore_adamw" and not training.optim_target_modules and not training.pure_bf16
    assert training.weight_decay == (0.1 if "weight_decay" in text else 0.0)
    assert {f.verdict for f in found.findings.values()} & {KeyVerdict.LOST, KeyVerdict.DIFFERS}


@pytest.mark.parametrize(
    ("line", "steps"), [("max_steps: 9", 0), ("max_steps: 15", 2), ("max_steps: 39", 3), ("", 0.1)]
)
def test_axolotls_warm_up_rounds_down(tmp_path: Path, line: str, steps: float) -> None:
    rows = "datasets: [{path: rows.jsonl, type: chat_template}]\nwarmup_ratio: 0.1"
    found, config, _ = imported(tmp_path, f"base_model: some/model\n{rows}\n{line}\n")
    assert config.training.warmup_steps == steps
    assert found.findings["warmup_ratio"].verdict is (KeyVerdict.MAPPED if line else KeyVerdict.DIFFERS)


def test_transformers_all_linear_holds_the_head(tmp_path: Path) -> None:
    text = TRL.replace("use_peft: true", "optim: galore_adamw\noptim_target_modules: all_linear")
    _, config, _ = imported(tmp_path, text)
    assert projected("lm_head.weight", 2, targets_of(config.training.optim_target_modules))
    assert not projected("lm_head.weight", 2, targets_of(("all-linear",)))


def test_what_is_a_mean_of_means_there_is_one_here(tmp_path: Path) -> None:
    for line, key, algorithm in (
        ("pref_loss: orpo", "pref_loss", "orpo"),
        ("pref_ftx: 0.5", "pref_ftx", "dpo"),
    ):
        found, config, _ = imported(tmp_path, FACTORY.replace("sft", "dpo") + line + "\n")
        assert found.findings[key].verdict is KeyVerdict.MAPPED
        options = getattr(config.training, algorithm)
        assert config.training.algorithm == algorithm and options.mean_of_means


def test_axolotls_fp16_is_fp16(tmp_path: Path) -> None:
    rows = "datasets: [{path: rows.jsonl, type: chat_template}]"
    _, config, _ = imported(tmp_path, f"base_model: some/model\n{rows}\nfp16: true\n")
    assert (config.training.mixed_precision, config.training.pure_bf16) == ("fp16", False)


def test_columns_of_pairs_and_labels_are_taken_over(tmp_path: Path) -> None:
    """axolotl's `field_…` of pairs, and the columns of LLaMA-Factory's KTO."""
    rows = "{path: rows.jsonl, type: chat_template.default, field_messages: talk, field_chosen: good}"
    _, config, _ = imported(tmp_path, f"base_model: some/model\nrl: dpo\ndatasets: [{rows}]\n")
    assert dict(config.data.train[0].columns) == {"messages": "talk", "chosen": "good"}
    info = {"votes": {"file_name": "v.json", "columns": {"response": "answer", "kto_tag": "vote"}}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    text = FACTORY.replace("sft", "kto").replace("alpaca_en_demo", "votes") + f"dataset_dir: {tmp_path}\n"
    _, config, _ = imported(tmp_path, text)
    assert dict(config.data.train[0].columns) == {
        "label": "vote", "prompt": "instruction", "completion": "answer",
    }  # fmt: skip


GALORE = "use_galore: true\ngalore_layerwise: true\ngalore_target: mlp,self_attn\ngalore_scale: 2.0\n"


@pytest.mark.parametrize(
    ("text", "targets", "args", "clip", "eps"),
    [
        (FULL + GALORE, ("mlp", "self_attn"), "rank=16", 0.0, 1e-8),
        (FULL + "use_galore: true\ngalore_rank: 64\n", ("all-linear",), "rank=64", 1.0, 1e-8),
        (
            TRL.replace("use_peft: true", "optim: galore_adamw\noptim_target_modules: [attn, mlp]")
            + "optim_args: rank=64,scale=0.5\nweight_decay: 0.1\n",
            ("attn", "mlp"), "rank=64", 1.0, 1e-6,
        ),
        (
            "base_model: some/model\ndatasets: [{path: rows.jsonl, type: chat_template}]\nbf16: true\n"
            "optimizer: galore_adamw_layerwise\noptim_target_modules: [mlp]\noptim_args: rank=64\n",
            ("mlp",), "rank=64", 0.0, 1e-6,
        ),
    ],
)  # fmt: skip
def test_galore(
    tmp_path: Path, text: str, targets: tuple[str, ...], args: str, clip: float, eps: float
) -> None:
    """LLaMA-Factory hands it betas, epsilon and decay; Transformers, which axolotl and TRL use, none."""
    found, config, _ = imported(tmp_path, text)
    assert not [f.key for f in found.findings.values() if "galore" in f.key and f.verdict is KeyVerdict.LOST]
    training = config.training
    assert (training.optim, training.optim_target_modules) == ("galore_adamw", targets)
    assert args in str(training.optim_args) and (training.max_grad_norm, training.adam_epsilon) == (clip, eps)
    assert training.weight_decay == 0.0


@pytest.mark.parametrize(
    ("system", "text", "project"),
    [
        ("trl", TRL + "report_to: trackio\nproject: mine\n", "mine"),
        ("trl", TRL + "report_to: tensorboard\nproject: mine\n", None),
        ("trl", TRL + "report_to: [wandb, trackio]\nwandb_project: mine\nproject: mine\n", "mine"),
        ("axolotl", AXOLOTL.replace("wandb_project:", "wandb_project: mine"), "mine"),
        ("axolotl", AXOLOTL.replace("wandb_project:", "mlflow_experiment_name: mine"), None),
        ("llamafactory", FACTORY + "use_swanlab: true\nswanlab_project: mine\n", "mine"),
    ],
)
def test_the_project_of_a_tracker(tmp_path: Path, system: str, text: str, project: str | None) -> None:
    found, config, _ = imported(tmp_path, text)
    assert found.system.replace("-", "").lower() == system and config.training.project == project
    key = next(k for k in found.findings if k.endswith(("project", "experiment_name")))
    assert found.findings[key].verdict is (KeyVerdict.MAPPED if project else KeyVerdict.NO_EFFECT)


def test_secrets_are_never_written(tmp_path: Path) -> None:
    token, key = "hf_" + "a1B2c3D4" * 5, "0123456789abcdef" * 2
    found, _, text = imported(
        tmp_path, TRL + f"hub_token: {token}\nswanlab_api_key: {key}\nrun_name: {token}\n"
    )
    everything = text + as_text(found, every=True) + json.dumps(as_json(found, text))
    assert token not in everything and key not in everything


def test_every_documented_argument_is_known() -> None:
    """All arguments at their defaults: each has a verdict, and all are kept."""
    classes = as_object(table("trl")["classes"])
    files = {
        f"trl {name}": (
            "trl",
            defaults("transformers") | defaults("trl", ["_BaseConfig", "ModelConfig", config]),
            name,
        )
        for name, config in trl.TRAINERS.items()
        if config in classes
    }
    files |= {
        "llamafactory": ("llamafactory", defaults("transformers") | defaults("llamafactory"), ""),
        "hf": ("hf", defaults("transformers"), ""),
    }
    for name, (system, values, algorithm) in files.items():
        given = {key: value for key, value in values.items() if value is not None}
        found = import_data(given, {}, "f.yaml", system, algorithm or None)  # type: ignore[arg-type]
        assert set(given) <= set(found.findings), name
        assert [f.key for f in found.findings.values() if f.line and f.verdict is KeyVerdict.LOST] == [], name


def test_every_template_can_be_written() -> None:
    """Each of LLaMA-Factory's templates parses as Jinja and writes both turns, the answer once."""
    for name, formats in as_object(table("llamafactory_templates")["templates"]).items():
        text = jinja(as_object(formats))
        plain = text.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
        turns = [{"role": "user", "content": "QQQ"}, {"role": "assistant", "content": "AAA"}]
        written = Environment().from_string(plain).render(messages=turns, eos_token="<E>")
        assert written.count("AAA") == 1 and written.index("QQQ") < written.index("AAA"), name


def test_command_lines() -> None:
    trl_line = read_command(
        ["trl", "dpo", "--learning_rate", "5e-7", "--loss_type", "sigmoid", "sft", "--fp16"]
    )
    assert (trl_line.system, trl_line.algorithm) == ("trl", "dpo")
    assert trl_line.data == {"learning_rate": 5e-7, "loss_type": ["sigmoid", "sft"], "fp16": True}
    factory = read_command(["llamafactory-cli train --stage sft --do_train --lora-rank=4"])
    assert factory.system == "llamafactory"
    assert factory.data == {"stage": "sft", "do_train": True, "lora_rank": 4}


def test_an_unknown_system_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("colour: red\n")
    with pytest.raises(ConfigError) as caught:
        import_config(str(file))
    assert caught.value.diagnostics[0].code == "config.import_system"
    assert set(TRANSLATORS) < {"trl", "llamafactory", "axolotl", "swift", "hf", "accelerate", "deepspeed"}


def test_a_job_file_becomes_settings(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(
        json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "gradient_clipping": 0.5})
    )
    found = import_config(str(file))
    made, problems = accepted(found, "test", of_config)
    assert problems == [] and found.share() == 1
    (tmp_path / "ours.yaml").write_text(made.text)
    config = load_config(str(tmp_path / "ours.yaml")).config
    assert (config.training.mixed_precision, config.training.max_grad_norm) == ("bf16", 0.5)


@pytest.mark.parametrize(
    ("loss", "verdict", "smoothing"), [("robust", "mapped", 0.2), ("sigmoid", "no effect", 0.0)]
)
def test_trl_smooths_the_labels_of_robust_only(
    tmp_path: Path, loss: str, verdict: str, smoothing: float
) -> None:
    """Its sigmoid loss has no smoothing, so an import that kept it would train another loss."""
    text = f"model_name_or_path: m\noutput_dir: o\nloss_type: [{loss}]\nlabel_smoothing: 0.2\n"
    found, config, _ = imported(tmp_path, text, system="trl", algorithm="dpo")
    assert found.findings["label_smoothing"].verdict.value == verdict
    assert (config.training.dpo.loss_type, config.training.dpo.label_smoothing) == (loss, smoothing)
    text = f"base_model: m\nrl: dpo\ndpo_loss_type: {loss}\ndpo_label_smoothing: 0.2\noutput_dir: o\n"
    found, config, _ = imported(tmp_path, text, system="axolotl")
    assert found.findings["dpo_label_smoothing"].verdict.value == verdict
    assert (config.training.dpo.loss_type, config.training.dpo.label_smoothing) == (loss, smoothing)


@pytest.mark.parametrize(("accumulation", "verdict"), [(1, "mapped"), (4, "differs")])
def test_trls_sft_term_is_the_same_in_one_micro_batch_alone(
    tmp_path: Path, accumulation: int, verdict: str
) -> None:
    text = (
        "model_name_or_path: m\noutput_dir: o\nloss_type: [sigmoid, sft]\nloss_weights: [1.0, 0.5]\n"
        f"gradient_accumulation_steps: {accumulation}\n"
    )
    found, config, _ = imported(tmp_path, text, system="trl", algorithm="dpo")
    assert found.findings["loss_type"].verdict.value == verdict
    assert config.training.dpo.rpo_alpha == 0.5


@pytest.mark.parametrize(("patience", "given"), [(2, {"patience": 2}), (None, {})])
def test_axolotls_loss_watchdog_is_a_callback_here(patience: int | None, given: dict[str, int]) -> None:
    data = {"base_model": "some/model", "loss_watchdog_threshold": 5.0, "loss_watchdog_patience": patience}
    found = import_data(as_object(data), dict.fromkeys(data, 1), "a.yaml", "axolotl")
    [written] = found.settings["training.callbacks"].value  # type: ignore[misc]
    assert written == {
        "name": "paceline.extend:LossWatchdog",
        "options": {"threshold": 5.0, **given},
    }
    assert found.findings["loss_watchdog_threshold"].verdict is KeyVerdict.MAPPED
    assert found.findings["loss_watchdog_patience"].verdict in (KeyVerdict.MAPPED, KeyVerdict.NO_EFFECT)
    off = import_data(as_object({**data, "loss_watchdog_threshold": None}), {}, "a.yaml", "axolotl")
    assert "training.callbacks" not in off.settings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("noisy_embedding_alpha", 5),
        ("model_config", {"rope_theta": 9}),
        ("model_kwargs", {"device_map": "auto"}),
        ("overrides_of_model_config", {"rope_theta": 9}),
    ],
)
def test_what_axolotl_reads_by_another_name_is_named_as_lost(key: str, value: object) -> None:
    """Its schema renames them (``schemas/validation.py``, aliases of ``RemappedParameters``)."""
    data = as_object({"base_model": "some/model", key: value})
    found = import_data(data, dict.fromkeys(data, 1), "a.yaml", "axolotl")
    assert found.findings[key].verdict is KeyVerdict.LOST


@pytest.mark.parametrize(("rl", "answer"), [("dpo", "chosen"), ("ipo", "chosen"), ("kto", "completion")])
def test_axolotls_own_formats_of_pairs_are_named_as_lost_and_columns_kept(rl: str, answer: str) -> None:
    """Its ``user_defined`` strategies write text by formats, without a chat template."""
    own = {"field_prompt": "q", f"field_{answer}": "good", "prompt_format": "[INST] {prompt} [/INST]"}
    data = as_object({"base_model": "m", "rl": rl, "datasets": [{"path": "p.jsonl", "type": own}]})
    found = import_data(data, dict.fromkeys(data, 1), "a.yaml", "axolotl")
    assert found.findings["datasets.0.type"].verdict is KeyVerdict.LOST
    assert found.settings["data.train"].value[0]["columns"] == {"prompt": "q", answer: "good"}  # type: ignore[index]
