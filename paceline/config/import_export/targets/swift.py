"""ms-swift's keys that are not renamed one to one: the command, rows, template, precision, special words."""

from __future__ import annotations

from paceline.config import codes
from paceline.config.import_export.argument_tables import table
from paceline.config.import_export.programs.ms_swift_templates import Writing, jinja
from paceline.config.import_export.targets.given import Given, present
from paceline.config.import_export.targets.names import ALGORITHMS_OF
from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object

#: ms-swift's words for data.on_too_long, and for the end that is cut
_TOO_LONG = {"skip": "delete", "refuse": "raise"}
_CUT = {"end": "right", "start": "left"}
_LOSS_ON = {"all": "all", "last": "last_round"}
#: form of rows → the columns that ms-swift is told to read otherwise; others it knows
_COLUMNS: dict[str, JsonObject] = {
    "pairs": {"chosen": "response", "rejected": "rejected_response"},
    "text": {"text": "response"},
}
_READ = {"sft": ("messages", "sharegpt", "alpaca", "completion", "text"), "kto": ("labelled",)}
_PAIRS = ("pairs",)


def command(config: Config, given: Given) -> str:
    """Return ms-swift's command for the training: ``sft``, ``pt`` or ``rlhf``."""
    if config.training.algorithm != "sft":
        return "rlhf"
    return "pt" if given.form_of(config) == "text" else "sft"


def swift(config: Config, given: Given) -> JsonObject:
    """Return the keys that combine several of ours. Raises ConfigError for rows that ms-swift cannot read."""
    data, training = config.data, config.training
    form, supervised = given.form_of(config), training.algorithm == "sft"
    _check_rows(config, form)
    name, cut = config.model.attn_implementation, _CUT.get(data.truncation, "right")
    keys: JsonObject = {
        "rlhf_type": None if supervised else ALGORITHMS_OF["swift"][training.algorithm],
        "tuner_type": "lora" if config.lora else "full",
        "template": _template(config),
        "model_type": _model_type(config) if given.model else None,
        "dataset": [each.path for each in data.train],
        "val_dataset": [each.path for each in data.eval] if data.eval else None,
        "split_dataset_ratio": data.validation_split or 0.0,
        "columns": _COLUMNS.get(form),
        "truncation_strategy": _TOO_LONG.get(data.on_too_long, cut),
        "packing": data.packing if supervised else None,
        "loss_scale": _LOSS_ON.get(data.train_on, "default") if supervised and form != "text" else None,
        "report_to": None if training.report_to else ["none"],
        "attn_impl": None if name == "auto" else name,
        **(_adapter(config) if config.lora else {}),
    }
    return present(keys)


def _check_rows(config: Config, form: str) -> None:
    """Raise ConfigError for rows of another form than ms-swift reads for the algorithm."""
    algorithm = config.training.algorithm
    known = _READ.get(algorithm, _PAIRS)
    plain = all(not each.columns and not each.converter for each in config.data.train)
    if plain and (form in known or not form):
        return
    rows = "rows with columns or a converter" if not plain else f"rows of the form {form}"
    remedy = f"rows of one of the forms {', '.join(known)}, without columns and converter"
    raise ConfigError(codes.CONFIG_EXPORT("ms-swift does not read these rows", "data.train", rows, remedy))


def _model_type(config: Config) -> str | None:
    """Return the type where ms-swift has one of this name: it knows no model that starts from a config."""
    kind = str(as_object(config.model.config).get("model_type"))
    return kind if kind in as_object(table("swift_templates")["types"]) else None


def _template(config: Config) -> str | None:
    """Return the name of the template that writes ours; None: ms-swift takes its model's own."""
    ours = config.model.chat_template
    formats = as_object(table("swift_templates")["templates"])
    written = ((name, as_object(each)) for name, each in formats.items() if "own" not in as_object(each))
    return next((name for name, each in written if ours and jinja(each, Writing()) == ours), None)


def _adapter(config: Config) -> JsonObject:
    lora = config.lora
    assert lora is not None
    every, bits = lora.target_modules == ("all-linear",), lora.quantization_bit
    modules: list[Json] = ["all-linear"] if every else list(lora.target_modules)
    quantised: JsonObject = {
        "quant_method": "bnb",
        "quant_bits": bits,
        "bnb_4bit_quant_type": lora.quantization_type,
        "bnb_4bit_use_double_quant": lora.double_quant,
    }
    return {
        "lora_alpha": lora.alpha if lora.alpha is not None else 2 * lora.r,
        "target_modules": modules,
        **(quantised if bits else {}),
    }
