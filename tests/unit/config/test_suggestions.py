"""A misspelt key is answered with the key that was meant, by spelling or by meaning; an unrelated word
with nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from machines import A100
from pydantic import ValidationError
from typer import Exit

from paceline.cli.configs import import_file
from paceline.config.import_export.argument_tables import table as arguments
from paceline.config.keys.aliases import ALIASES
from paceline.config.keys.nearest import MOST_UNKNOWN, nearest
from paceline.config.keys.suggest import Suggestion, suggestion, synonyms
from paceline.config.keys.valid_keys import RECOGNISED, known_names
from paceline.config.schema import SECTIONS, Config, field_of, fields
from paceline.config.sections.training import TrainingSection
from paceline.config.yaml_text.read_file import read_table
from paceline.core.errors import ConfigError
from paceline.core.json_types import as_object
from paceline.core.plugins.tables import STRATEGIES
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan

Load = Callable[..., Any]
SHORTEST = 5  # letters of a key for which each slip is found


def slips(name: str) -> set[str]:
    """Every slip of one letter in the middle: left out, doubled, changed, swapped with its neighbour; and
    other ways to part words.
    """
    found = {name.replace("_", "-"), name.replace("_", ""), name.upper(), name.title().replace("_", "")}
    for i in range(1, len(name) - 1):
        found |= {name[:i] + name[i + 1 :], name[:i] + name[i] + name[i:], name[:i] + "w" + name[i + 1 :]}
        found.add(name[:i] + name[i + 1] + name[i] + name[i + 2 :])
    return found - {name}


def keys() -> list[tuple[str, str]]:
    return [(path.rpartition(".")[0], path.rpartition(".")[2]) for path in fields()]


def known(section: str) -> tuple[str, ...]:
    if section in SECTIONS:
        return known_names(section)
    return tuple(path.rpartition(".")[2] for path in fields() if path.rpartition(".")[0] == section)


def test_the_key_that_was_meant_is_suggested_for_every_slip() -> None:
    wrong, tried = [], 0
    for section, name in keys():
        if len(name.replace("_", "")) < SHORTEST:
            continue
        names = known(section)
        for slip in sorted(slips(name) - set(names)):
            tried += 1
            found = suggestion(slip, section, names)
            hint = found.hint if found else ""
            if f"'{name}'" not in hint.replace(f"{section}.", ""):
                wrong.append((section, slip, hint))
    assert tried > 4000
    others = [w for w in wrong if w[2] and w[1].lower().replace("_", "") not in map(_plain, synonyms())]
    assert len(wrong) <= tried * 0.01, wrong[:20]
    assert len(others) <= tried * 0.005, others[:20]


@pytest.mark.parametrize("where", ["", "training", "data", "training.rollout"])
def test_a_slip_in_another_section_is_answered_with_the_key_where_it_belongs(where: str) -> None:
    names, wrong, tried = known(where) if where else known_names(""), [], 0
    for section, name in keys():
        if section == where or len(name) < 10 or not section.count("."):
            continue
        for slip in (name[:-1], name[:5] + name[6:]):
            tried += 1
            hint = suggestion(slip, where, names)
            if hint is None:
                wrong.append((section, slip))
    assert tried > 50
    assert len(wrong) <= tried * 0.02, wrong


def _plain(name: str) -> str:
    return name.replace("_", "")


@pytest.mark.parametrize(
    "word",
    [
        "banana",
        "elephant",
        "horizontal",
        "purple",
        "weather",
        "kitchen",
        "optimal",
        "storage",
        "monkey",
        "house",
        "python",
        "yesterday",
        "foobar",
        "xyzzy",
        "my_setting",
        "color",
        "loops",
        "hidden_size",
        "vocab_size",
        "num_layers",
        "use_magic",
        "turbo",
        "verbose_mode",
        "cuda_graphs",
    ],
)
def test_an_unrelated_word_gets_no_suggestion(word: str) -> None:
    for section in ("", *SECTIONS):
        assert suggestion(word, section, known_names(section)) is None


@pytest.mark.parametrize(
    ("written", "line", "hint"),
    [
        ("training:\n  per_device_batch_size: 2\n", 2, "per_device_train_batch_size"),
        ("training:\n  lora: {r: 4}\n", 2, "section of its own"),
        ("training:\n  use_lora: true\n", 2, "lora: section"),
        ("training:\n  eval_every: 5\n", 2, "'eval_steps'"),
        ("training:\n  save_freq: 5\n", 2, "'save_steps'"),
        ("training:\n  num_restarts: 5\n", 2, "--max-restarts"),
        ("training:\n  ep_size: 5\n", 2, "expert parallelism is not supported"),
        ("training:\n  log_interval: 5\n", 2, "'logging_steps'"),
        ("training:\n  max_gradient_norm: 5\n", 2, "'max_grad_norm'"),
        ("training:\n  tensor_parallel_size: 2\n", 2, "'training.parallelism.tp_size'"),
        ("training:\n  rollout: {max_tokens: 2}\n", 2, "'max_completion_length'"),
        ("training:\n  grpo: {kl_coef: 2}\n", 2, "'beta'"),
        ("model:\n  learning_rat: 2\n", 2, "'training.learning_rate'"),
        ("data:\n  model: x\n", 2, "section of its own"),
        ("epochs: 3\n", 1, "'num_train_epochs'"),
    ],
)
def test_a_key_of_another_program_is_answered_by_meaning(refuse, written: str, line: int, hint: str) -> None:
    (found,) = [d for d in refuse(written).diagnostics if d.code == "config.unknown_key"]
    assert found.where.endswith(f":{line}")
    assert hint in found.hint


def test_each_synonym_leads_to_a_key_and_is_none_itself() -> None:
    taken = {name for section in ("", *SECTIONS) for name in known_names(section)}
    for table in (synonyms(), *map(synonyms, read_table("synonyms")["inside"])):
        for written, meant in table.items():
            assert " " in meant or field_of(meant) is not None, (written, meant)
            assert table is not synonyms() or written not in taken - {"train_path", "eval_path"}, written


def test_what_lies_further_than_its_slips_is_not_suggested() -> None:
    names = ("nebula", "run_name", "rl_beta", "seed")
    assert [nearest(word, names) for word in ("bf_abnine", "erboemoa", "rlrr_satj", "set")] == [
        [],
        [],
        [],
        [],
    ]


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "kind",
    ["section", "json", "secrets", *(pytest.param(k, marks=FULL) for k in ("overrides", "kwargs"))],
)
def test_many_unknown_keys_cost_little(refuse, tmp_path, kind: str) -> None:
    """20,000 keys took a minute; the first are named one by one, the others counted."""
    many = 20_000
    names = [f"key_{number * 7919 % 104_729:x}_of_mine" for number in range(many)]
    overrides: tuple[str, ...] = ()
    if kind == "section":
        text = "training:\n" + "".join(f"  {name}: 1\n" for name in names)
    elif kind == "json":
        (tmp_path / "many.json").write_text(json.dumps(dict.fromkeys(names, 1), indent=1))
        text = "training: {deepspeed: many.json}\n"
    elif kind == "secrets":
        text = "data: {" + ", ".join(f"api_key_{n}: hf_{'a1' * 17}" for n in range(2_000)) + "}\n"
    else:
        text = "training: {seed: 1}\n"
        inside = "lr_scheduler_kwargs." if kind == "kwargs" else ""
        overrides = tuple(f"training.{inside}{name}=1" for name in names)
    began = time.process_time()
    found = refuse(text, *overrides).diagnostics if kind != "kwargs" else ()
    if kind == "kwargs":
        refuse(text, *overrides, "training.seed=x")
    assert time.process_time() - began < 15.0  # 2 s here; before: 60 s and more
    if kind in ("section", "overrides"):
        assert len(found) == MOST_UNKNOWN + 1
        assert any(f"{many - MOST_UNKNOWN:,} more unknown keys" in d.what for d in found)


@pytest.mark.parametrize(
    "system",
    ["llamafactory", "deepspeed", *(pytest.param(name, marks=FULL) for name in ("swift", "accelerate"))],
)
def test_an_import_of_many_unknown_keys_costs_little_and_says_little(
    system: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """20,000 keys made 4 MB of text, and those of a DeepSpeed file took two minutes of CPU time."""
    many = 8_000 if system in ("deepspeed", "accelerate") else 20_000
    known = {"deepspeed": {"gradient_clipping": 1.0}, "accelerate": {"num_processes": 2}}.get(system, {})
    file = tmp_path / "many.json"
    file.write_text(json.dumps(known | {f"key_{number}_of_mine": 1 for number in range(many)}, indent=1))
    began = time.process_time()
    with suppress(Exit):
        import_file(
            str(file), [], system, "sft" if system == "swift" else None, None, as_json=False, every=False
        )
    assert time.process_time() - began < 15.0
    out, err = capsys.readouterr()
    assert len(out) + len(err) < 60_000
    assert "key_19_of_mine" in out + err and f"{many - 20:,} more" in out + err


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("Beta", "training.dpo"),
        ("BETA", "training.grpo"),
        ("Num-Generations", "training.rollout"),
        ("Weight", "data.train.0"),
    ],
)
def test_capitals_never_lead_to_another_section(name: str, where: str) -> None:
    plain = name.lower().replace("-", "_")
    found = suggestion(name, where, ("path", plain))
    assert found == Suggestion(f"did you mean '{plain}'?", f"{where}.{plain}")


def test_a_key_of_one_section_is_not_sent_to_another_of_its_name() -> None:
    """``training.reward`` is a section; inside ``training.rollout`` rewards are meant."""
    found = suggestion("reward", "training.rollout", known("training.rollout"))
    assert found == Suggestion("did you mean 'rewards'?", "training.rollout.rewards")


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("wsd", "warmup_stable_decay"),
        ("linear_with_warmup", "linear"),
        ("cosine_annealing", "cosine"),
        ("cosine_with_minlr", "cosine_with_min_lr"),
    ],
)
def test_a_schedule_by_its_initials_or_with_more_words_is_named(word: str, near: str) -> None:
    with pytest.raises(ValidationError, match=f"did you mean {near}\\?"):
        TrainingSection.model_validate({"lr_scheduler_type": word})


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("adamww", "adamw_torch"),
        ("adamw_8bits", "adamw_8bit"),
        ("adam", "adamw_torch"),
        ("lino_8bit", "lion_8bit"),
    ],
)
def test_the_nearest_word_is_named(word: str, near: str) -> None:
    """With a letter too many the first that starts so, which is the default of its kind."""
    with pytest.raises(ValidationError, match=f"did you mean {near}\\?"):
        Config.model_validate(
            {
                "model": {"config": {}, "tokenizer": "none"},
                "data": {"train": "none.jsonl"},
                "training": {"optim": word},
            }
        )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *(
            (f"{begin}{n}{end}", f"zero{n}")
            for n in "123"
            for begin, end in (("deepspeed_zero", ""), ("zero-", ""))
        ),
        *((name, "zero3") for name in ("ZeRO3", "deepspeed_stage_3_offload", "ds_zero3", "zero_stage_3")),
        *((name, "fsdp") for name in ("fsdp2", "FSDP", "full_shard", "fully_shard", "fsdpp", "fsdp-native")),
        *((name, "ddp") for name in ("DDP", "MULTI_GPU", "DistributedDataParallel")),
        *((name, "tp_size") for name in ("tensor_parallel", "megatron-lm", "TP")),
        ("sequence_parallel", "cp_size"),
        ("horovod", "not supported"),
        ("zero4", "one of auto"),
        ("quux", "one of auto"),
    ],
)
def test_a_strategy_by_another_name_is_told_once_with_what_to_write(written: str, meant: str) -> None:
    config = Config.from_json({"training": {"distributed_strategy": written}})
    with pytest.raises(ConfigError) as error:
        make_plan(Job(config, A100, world_size=8, launcher="spawn", run_dir="none"))
    (found,) = [d for d in error.value.diagnostics if d.code == "strategy.unknown"]
    assert (f"'{meant}'" if meant in STRATEGIES.names() else meant) in found.hint


PROGRAMS = ("trl", "axolotl", "llamafactory", "swift", "transformers")


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_argument_of_another_program_is_only_unknown_or_taken_for_a_slip(program: str) -> None:
    names = {
        n for one in as_object(arguments(program)["classes"]).values() for n in as_object(one) if "_" in n
    }
    known = known_names("training")
    left = [n for n in names - set(known) - set(ALIASES) - set(RECOGNISED) if not is_named(n, known)]
    assert len(names) > 20 and left == []


def is_named(name: str, known: tuple[str, ...]) -> bool:
    found = suggestion(name, "training", known)
    return found is not None and (name in synonyms() or "did you mean" not in found.hint)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ema_decay", "checkpoints average"),
        ("freeze_llm", "training.freeze"),
        ("embedding_learning_rate", "one learning rate"),
        ("chat_template_path", "TRL's name for 'model.chat_template'"),
        ("dataset_prepared_path", "axolotl: prepared data are cached"),
        ("sync_ref_model", "an argument of TRL; `paceline config import`"),
        ("use_kv_cache", "an argument of LLaMA-Factory"),
    ],
)
def test_what_other_programs_have_is_said_by_key_or_reason(refuse: Load, name: str, said: str) -> None:
    (found,) = refuse(f"training:\n  {name}: 1\n").diagnostics
    assert found.code == "config.unknown_key" and said in found.hint
