"""TRL's keys that are not renamed one to one: data sets, templates, rewards, and values that its parsers
refuse."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence

from paceline.config import codes
from paceline.config.import_export.programs.trl import REWARDS
from paceline.config.import_export.targets import trl_rewards
from paceline.config.import_export.targets.given import Given, loader_of, present, reads_as_they_are
from paceline.config.schema import Config
from paceline.config.sections.data import Dataset
from paceline.config.sections.rollout import RewardItem
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject

#: forms of rows that each trainer of TRL reads as this program does
READ = {"sft": ("text",)}


def trl(config: Config, given: Given) -> JsonObject:
    """Return the keys that combine several of ours, and add the files that they name."""
    data, training = config.data, config.training
    supervised, algorithm = training.algorithm == "sft", training.algorithm
    keys = _data(config, given) | (_adapter(config) if config.lora else {})
    if supervised:
        keys |= {"packing": data.packing} | _loss_on(config, given) | _template(config, given)
    else:
        keys |= present({"disable_dropout": training.disable_dropout})
    if algorithm in ("grpo", "rloo"):
        keys |= _rewards(config, given)
    name = config.model.attn_implementation
    return keys | present({"attn_implementation": None if name == "auto" else name})


def _adapter(config: Config) -> JsonObject:
    lora = config.lora
    assert lora is not None
    every, bits = lora.target_modules == ("all-linear",), lora.quantization_bit
    return {
        "use_peft": True,
        "lora_alpha": lora.alpha if lora.alpha is not None else 2 * lora.r,
        "lora_dropout": lora.dropout or 0.0,
        "lora_target_modules": "all-linear" if every else list(lora.target_modules),
        **(
            {
                f"load_in_{bits}bit": True,
                "bnb_4bit_quant_type": lora.quantization_type,
                "use_bnb_nested_quant": lora.double_quant,
            }
            if bits
            else {}
        ),
    }


def _data(config: Config, given: Given) -> JsonObject:
    """Return the data keys: a folder with the files of its splits, or a mixture of loaders without a test
    split."""
    data = config.data
    held_out = {"test_split_size": data.validation_split} if data.validation_split else {}
    if given.rows and not held_out:
        return {"dataset_name": given.rows}
    if given.rows:
        return {"datasets": [{"path": "json", "data_files": f"{given.rows}/train.jsonl"}], **held_out}
    one = data.train[0] if len(data.train) == 1 and data.train[0].weight == 1.0 else None
    split = _own_split(config)
    if one is not None and not loader_of(one.path) and (split or not held_out):
        named: JsonObject = {"dataset_train_split": one.split, "dataset_config": one.name}
        return present({"dataset_name": one.path, **named, "dataset_test_split": split})
    shares = len({d.weight for d in data.train}) > 1
    return {"datasets": [_set(d, shares) for d in data.train], **held_out}


def _own_split(config: Config) -> str | None:
    """Return the split of the training data that is evaluated; empty if it is a file."""
    data, evals = config.data, config.data.eval or ()
    same = len(data.train) == 1 and [d.path for d in evals] == [data.train[0].path]
    return evals[0].split if same and not loader_of(evals[0].path) else None


def evaluates(config: Config, given: Given) -> bool:
    """Whether the file that is written has rows to evaluate."""
    held_out = config.data.validation_split or (given.rows and config.data.eval)
    return bool(held_out or _own_split(config))


def _set(data_set: Dataset, shares: bool) -> Json:
    loader = loader_of(data_set.path)
    return present(
        {
            "path": loader or data_set.path,
            "data_files": data_set.path if loader else None,
            "name": data_set.name,
            "split": data_set.split,
            "fraction": data_set.weight if shares else None,
        }
    )


def _loss_on(config: Config, given: Given) -> JsonObject:
    """Return the loss mask: TRL trains on completions, and in conversations on every token or on answers."""
    form, every = given.form_of(config), config.data.train_on == "all"
    if form in ("text", "completion"):
        return {"completion_only_loss": False} if every and form == "completion" else {}
    return {"assistant_only_loss": not every}


def _template(config: Config, given: Given) -> JsonObject:
    template = config.model.chat_template
    if template is None or given.model:  # the folder's tokenizer has it
        return {}
    is_path = "{" not in template and template.endswith((".jinja", ".j2"))
    path = template if is_path else given.beside(f"{given.stem}_template.jinja", template)
    return {"chat_template_path": path}


def _rewards(config: Config, given: Given) -> JsonObject:
    """Return TRL's own rewards by name, and ours as functions in a file next to it. Raises ConfigError for
    others."""
    rollout = config.training.rollout
    rewards = rollout.rewards if rollout else ()
    models = [reward for reward in rewards if reward.name == "model"]
    others = [reward for reward in rewards if reward.name != "model"]
    names = [_own(reward) or f"reward_{number}" for number, reward in enumerate(others, 1)]
    written = [(name, reward) for name, reward in zip(names, others, strict=True) if not _own(reward)]
    module = f"{given.stem}_rewards"
    if written:
        given.beside(f"{module}.py", _file(written))
    place = os.path.relpath(given.folder)
    below = place != "." and not place.startswith("..")  # else PYTHONPATH must name the folder
    package = f"{place.replace(os.sep, '.')}." if below else ""
    here = {name for name, _ in written}
    listed: list[Json] = [f"{package}{module}.{name}" if name in here else name for name in names]
    weights: list[Json] = [reward.weight for reward in [*models, *others]]
    return present(
        {
            "reward_model_name_or_path": str(models[0].options["model"]) if models else None,
            "reward_funcs": listed or None,
            "reward_weights": weights if set(weights) != {1.0} else None,
        }
    )


def _own(reward: RewardItem) -> str:
    """Return TRL's name of a reward; empty if it has none."""
    mine = {"name": reward.name, "options": dict(reward.options)}
    return next((name for name, theirs in REWARDS.items() if theirs == mine), "")


def _file(rewards: Sequence[tuple[str, RewardItem]]) -> str:
    known = trl_rewards.REWARDS
    for _, reward in rewards:
        if reward.name not in known:
            raise ConfigError(
                codes.CONFIG_EXPORT(
                    f"the reward {reward.name} has no function of TRL's form",
                    "training.rollout.rewards",
                    reward.name,
                    f"of ours, {', '.join(known)} and model are exported; write the others as TRL takes them",
                )
            )
    lines = [
        f"{name} = {reward.name}({', '.join(f'{key}={value!r}' for key, value in reward.options.items())})"
        for name, reward in rewards
    ]
    source = inspect.getsource(trl_rewards).partition("REWARDS = ")[0].rstrip()
    return "\n".join([source, "", "", *lines, ""])


def rows_wanted(config: Config) -> bool:
    """Whether the rows must be rewritten for TRL, which reads turns and evaluates splits of a folder."""
    local = bool(config.data.train) and all(loader_of(d.path) for d in config.data.train)
    alike = reads_as_they_are(config.data.train, READ.get(config.training.algorithm, ()))
    return local and (not alike or bool(config.data.eval))
