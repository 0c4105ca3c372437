"""Diagnostic codes of reading a config: its YAML, its keys, and other systems' files."""

from __future__ import annotations

from paceline.core.diagnostics import Code

ZERO_OPTIMIZER_PARAMS = Code(
    "zero.optimizer_params",
    "A parameter of the DeepSpeed file's optimizer has no counterpart, and dropping it would change"
    " the update. Set training.optim and training.optim_args instead, or remove the parameter.",
)
ZERO_UNKNOWN_KEY = Code(
    "zero.unknown_key", "DeepSpeed 0.19 refuses unknown keys inside a block; the nearest known key is named."
)
ZERO_NVME_PATH = Code("zero.nvme_path", "Offload to NVMe needs a folder on the drive: set nvme_path.")
ZERO_NOT_BUILT = Code(
    "zero.not_built",
    "A DeepSpeed feature that would change training and that is not supported here, or that"
    " DeepSpeed itself has removed. If it is switched off, the key is accepted with a note.",
)
ZERO_OPTIMIZER = Code(
    "zero.optimizer",
    "The optimizer in the DeepSpeed file has no counterpart with the same update. If the YAML sets"
    " training.optim, that is used instead.",
)
ZERO_SCHEDULER = Code(
    "zero.scheduler",
    "The scheduler in the DeepSpeed file has no counterpart. If the YAML sets lr_scheduler_type,"
    " that is used instead.",
)
ZERO_TUNING_SPACE = Code(
    "zero.tuning_space",
    "A list is given where one value is expected. This is a file for DeepSpeed's autotuner, which"
    " would try each value; a run has one value.",
)
ZERO_UNKNOWN_TOPLEVEL = Code(
    "zero.unknown_toplevel",
    "DeepSpeed reads its top level with dict.get, so it silently ignores a misspelt key"
    " (gradient_accumulation_step). Here it is refused.",
)

CONFIG_MISSING_FILE = Code("config.missing_file", "The config file named on the command line does not exist.")
CONFIG_IS_DIRECTORY = Code("config.is_directory", "A directory was given where a YAML file is expected.")
CONFIG_UNREADABLE = Code(
    "config.unreadable",
    "The operating system does not let this user read the file (permissions, a broken link, a device).",
)
CONFIG_TOO_LARGE = Code(
    "config.too_large",
    "A config file larger than 1 MiB is refused: it is almost always a data file passed by mistake.",
)
CONFIG_NOT_UTF8 = Code(
    "config.not_utf8",
    "Config files are UTF-8 text. The line shows where the first byte that is not UTF-8 is.",
)
CONFIG_EMPTY_FILE = Code(
    "config.empty_file", "The file contains no settings: it is empty, or all lines are comments."
)
CONFIG_NOT_A_MAPPING = Code(
    "config.not_a_mapping",
    "The top level of the file must be `key: value` lines, not a list or a single value.",
)
CONFIG_SEVERAL_DOCUMENTS = Code(
    "config.several_documents",
    "`---` starts a second YAML document. A config is one document; most readers would ignore the second.",
)
CONFIG_YAML_TAB = Code(
    "config.yaml_tab", "YAML forbids tabs for indentation. Most editors can convert them to spaces."
)
CONFIG_YAML_SYNTAX = Code(
    "config.yaml_syntax",
    "The text is not valid YAML. Common causes: a missing space after a colon, an unclosed quote,"
    " uneven indentation, `: ` inside an unquoted value.",
)
CONFIG_YAML_TAG = Code(
    "config.yaml_tag",
    "Tags such as `!!python/object` make other readers create objects and run code. Only plain"
    " values are accepted.",
)
CONFIG_YAML_BOMB = Code(
    "config.yaml_bomb",
    "Aliases of aliases expand to an enormous value. Expansion stops at 50,000 values.",
)
CONFIG_YAML_DEPTH = Code(
    "config.yaml_depth", "The file is nested more than 32 levels deep; settings need about five."
)
CONFIG_YAML_RECURSION = Code(
    "config.yaml_recursion",
    "An alias refers to a value that contains the alias itself, so it cannot be expanded.",
)
CONFIG_YAML_ALIAS = Code(
    "config.yaml_alias", "`*name` refers to an anchor `&name` that is not defined above it."
)
CONFIG_YAML_KEY = Code("config.yaml_key", "A key is a list or a mapping. Keys must be words.")
CONFIG_YAML_MERGE = Code(
    "config.yaml_merge",
    "`<<:` merges a mapping (or a list of mappings) into another; a different value was given.",
)
CONFIG_DUPLICATE_KEY = Code(
    "config.duplicate_key",
    "The same key appears twice in one mapping. Most readers silently use the last one; here it is an error.",
)
CONFIG_JSON_SYNTAX = Code(
    "config.json_syntax",
    "The file is not JSON. In a DeepSpeed file comments and trailing commas are accepted, as in"
    " DeepSpeed itself (Hjson); NaN and unquoted keys are not.",
)
CONFIG_JSON_TEMPLATE = Code(
    "config.json_template",
    "There is an unquoted word where a value is expected: a placeholder of a template. DeepSpeed's"
    " reader (Hjson) would read it, and the rest of the line, as a string.",
)
CONFIG_OVERRIDE = Code(
    "config.override",
    "Overrides on the command line are written `section.key=value`, for example"
    " `training.learning_rate=1e-4`.",
)
CONFIG_VARIABLE = Code(
    "config.variable",
    "A value contains a shell variable ($NAME, the same in braces, or %NAME%), which is not"
    " expanded in a config: a folder with that literal name would be created. The same holds for"
    " ~NAME, the home of a user unknown to this machine. Write the value itself, or ~ for your"
    " home; on the command line the shell expands variables first.",
)
CONFIG_EXTENSION = Code(
    "config.extension",
    "A top-level block whose name begins with x- contains anchors for the rest of the file. The"
    " block itself is not read.",
)
CONFIG_LOOKALIKE = Code(
    "config.lookalike",
    "A character looks like one of YAML's, JSON's or a number's, but is another one: a full-width"
    " colon or comma, a curly quote, a non-breaking space, an invisible character. Write the plain"
    " character that the message shows.",
)
CONFIG_UNKNOWN_VARIABLE = Code(
    "config.unknown_variable",
    "Variables `PACELINE_<SECTION>__<KEY>` set config keys. This one names no section, or has one"
    " underscore where two are needed, so it would have no effect.",
)
CONFIG_SECTION = Code(
    "config.section",
    "A section (model, data, training, lora, generation, launch) contains keys; a single value was given.",
)
CONFIG_NOT_A_CONFIG = Code(
    "config.not_a_config",
    "A saved effective config (config.json of a run) does not match this version of Paceline.",
)
CONFIG_UNKNOWN_KEY = Code(
    "config.unknown_key",
    "Unknown key. A misspelt key would silently leave its default in force, so it is refused; the"
    " nearest known key is named.",
)
CONFIG_NO_ITEM = Code(
    "config.no_item",
    "An item of a list is set by its number, counted from 0: `data.train.0.weight=2`. The list must have that"
    " item, and the item that key.",
)
CONFIG_CONFLICT = Code(
    "config.conflict",
    "One setting is given two different values in one layer: by two spellings, or by the same key"
    " twice. Equal values are accepted; different layers override each other.",
)
CONFIG_TYPE = Code(
    "config.type",
    "The value has the wrong type: a word where a number is expected, a list where a word is"
    ' expected, or no value at all. `5e-5` and "2e-5" are both numbers.',
)
CONFIG_VALUE = Code(
    "config.value",
    "The value has the right type, but it is not one of the allowed words or not in the allowed range.",
)
CONFIG_TRANSLATED = Code(
    "config.translated",
    "A legacy spelling was read as its current key. No action is needed; the message names the key.",
)
CONFIG_NO_EFFECT = Code(
    "config.no_effect",
    "A key of Transformers or LLaMA-Factory that is not needed here; the message says what happens instead.",
)
CONFIG_NOT_GRANTED = Code(
    "config.not_granted",
    "A key of Transformers or LLaMA-Factory requests something that is not supported; the run"
    " starts without it.",
)
CONFIG_NOT_SUPPORTED = Code(
    "config.not_supported",
    "A key of Transformers or LLaMA-Factory requests something that is not supported and that would"
    " change the run; it is refused.",
)
CONFIG_DEEPSPEED_BOTH = Code(
    "config.deepspeed_both",
    "`deepspeed:` has both `config_path` and settings; give either a file or the settings.",
)
CONFIG_LORA_OFF = Code(
    "config.lora_off",
    "Adapter settings are given together with `finetuning_type: full` or `lora: null` in one layer.",
)
CONFIG_FOREIGN_MISSING = Code(
    "config.foreign_missing",
    "The config names a DeepSpeed or FSDP file that does not exist. Reading the config gives a"
    " warning; a start is refused.",
)
CONFIG_FOREIGN_AS_CONFIG = Code(
    "config.foreign_as_config",
    "A DeepSpeed, Accelerate or FSDP file was given as the config. Name such a file inside a"
    " config: deepspeed, accelerate_config, fsdp_config.",
)
CONFIG_OTHER_PROGRAM = Code(
    "config.other_program",
    "The config was written for another training program (axolotl, torchtune, verl, OpenRLHF,"
    " ms-swift, LLaMA-Factory, TRL …). Keys that have a meaning here are read, or the message shows"
    " how an equivalent Paceline config would begin.",
)
CONFIG_FOREIGN_NOT_TAKEN = Code(
    "config.foreign_not_taken",
    "A setting of another system's file is ignored; the message gives the reason.",
)
CONFIG_FILE_VALUE_OVERRIDDEN = Code(
    "config.file_value_overridden",
    "The YAML (or a higher layer) sets a value that the DeepSpeed, FSDP or Accelerate file sets as"
    " well. The higher layer takes precedence; the message names both places.",
)

LAUNCH_OPTION_WINS = Code(
    "launch.option_wins",
    "An option of the outer launcher (accelerate launch --mixed_precision bf16) and the YAML"
    " disagree. The option given on the command line is used.",
)
LAUNCH_OPTION_OVERRIDDEN = Code(
    "launch.option_overridden",
    "A setting of the outer launcher is overridden: its default by the YAML, its option by a"
    " PACELINE_ variable or the command line.",
)
LAUNCH_OPTIONS_TAKEN = Code(
    "launch.options_taken",
    "Options of the outer launcher that were read into the config, each with its variable.",
)
LAUNCH_NO_EFFECT = Code(
    "launch.no_effect",
    "A variable or option of the outer launcher has no effect here; the message gives the reason.",
)

ACCELERATE_UNKNOWN_KEY = Code("accelerate.unknown_key", "Accelerate's config file does not have this key.")
ACCELERATE_NOT_BUILT = Code(
    "accelerate.not_built",
    "The Accelerate file requests something that is not supported (TPUs, SageMaker, 8-bit matrix"
    " products); the message gives the reason.",
)

FSDP_OFFLOAD = Code("fsdp.offload", "Offload to the CPU works with full_shard and shard_grad_op only.")
FSDP_VALUE = Code(
    "fsdp.value", "A value in the FSDP settings is not one of the allowed words, or has the wrong type."
)
FSDP_NOT_BUILT = Code(
    "fsdp.not_built", "An FSDP setting that would change training and that is not supported."
)
FSDP_UNKNOWN_KEY = Code(
    "fsdp.unknown_key", "FSDP does not have this setting, with or without the prefix fsdp_."
)

TRAIN_OPTIM_ARGS = Code(
    "train.optim_args",
    "optim_args passes options to the optimizer's class: names and types are those of torch (or of"
    " Transformers' Adafactor).",
)

PREC_FP16_AND_BF16 = Code(
    "prec.fp16_and_bf16",
    "fp16 and bf16 exclude each other. bf16 has float32's range and needs no loss scaling; fp16 is"
    " for devices without bf16.",
)
PREC_AMP_ZERO = Code("prec.amp_zero", "DeepSpeed's `amp` block (Apex) does not work with ZeRO.")

PEFT_QUANT_FULL = Code(
    "peft.quant_full",
    "Quantised weights cannot be trained in full; adapters can be trained on top of them (QLoRA).",
)

SEC_SECRET_VALUE = Code(
    "sec.secret_value",
    "A value of the config is, or contains, the value of an environment variable whose name"
    " suggests a token, key, secret or password. It would be written to config.json and plan.json"
    " and shown to trackers.",
)
SEC_NO_REMOTE_CODE = Code(
    "sec.no_remote_code",
    "trust_remote_code: true was given where no code is needed (a model created from scratch) or no"
    " code is pinned (a hub name without a revision), as files of other programs do for every"
    " model. It is treated as false, and no code runs. A model that needs its own code is refused"
    " when it is loaded; pin the 40-digit commit in `model.revision`.",
)
SEC_SECRET_ON_CLI = Code(
    "sec.secret_on_cli",
    "A secret in a config or on the command line is visible to `ps`, saved with the run and sent to"
    " trackers. Keep it in an environment variable.",
)
CONFIG_EXTENDS = Code(
    "config.extends",
    "`extends:` names files below this one, whose keys it overrides. A file is missing, or the files extend"
    " each other in a circle, which the message shows.",
)
CONFIG_SCHEMA_VERSION = Code(
    "config.schema_version",
    "schema_version says which version of the config's schema a file is written for. It is newer than this"
    " Paceline's, which therefore does not know what the file means, or no whole number.",
)
CONFIG_MIGRATED = Code(
    "config.migrated",
    "The file is written for an older schema version, in which this key's value or default meant something"
    " else: it is read as it was meant. The message says what to write today.",
)
CONFIG_EXPORT = Code(
    "config.export",
    "`paceline config export` cannot write this config for that system, which has no trainer for its"
    " algorithm.",
)
CONFIG_IMPORT_SYSTEM = Code(
    "config.import_system",
    "`paceline config import` recognises a config's system by its keys; here they fit none. Name it with"
    " --from.",
)
CONFIG_IMPORT_COMMAND = Code(
    "config.import_command",
    "`paceline config import` reads one command that trains from a shell script, as bash would run it. Here"
    " there is none or more than one, or an argument that only running the script would tell.",
)
