"""Diagnostic codes of reading a config: its YAML, its keys, and other systems' files."""

from __future__ import annotations

from paceline.core.diagnostics import Code

ZERO_OPTIMIZER_PARAMS = Code(
    "zero.optimizer_params",
    "A parameter of the DeepSpeed file's optimizer has no counterpart, and leaving it out would change the"
    " update. Set training.optim and training.optim_args instead, or take the parameter out.",
)
ZERO_UNKNOWN_KEY = Code(
    "zero.unknown_key", "DeepSpeed 0.19 refuses keys that a block does not have; the nearest one is named."
)
ZERO_NVME_PATH = Code("zero.nvme_path", "Offload to NVMe needs a folder on the drive: nvme_path.")
ZERO_NOT_BUILT = Code(
    "zero.not_built",
    "A feature of DeepSpeed that changes what is learnt and that is not built, or that DeepSpeed itself has"
    " removed. Switched off, it passes with a note.",
)
ZERO_OPTIMIZER = Code(
    "zero.optimizer",
    "The optimizer of the DeepSpeed file has no counterpart with the same update. training.optim in the YAML"
    " decides instead, where it is given.",
)
ZERO_SCHEDULER = Code(
    "zero.scheduler",
    "The schedule of the DeepSpeed file has no counterpart. lr_scheduler_type in the YAML decides instead,"
    " where it is given.",
)
ZERO_TUNING_SPACE = Code(
    "zero.tuning_space",
    "A list where one value belongs: a file for DeepSpeed's autotuner, which would try each. A run has one"
    " value.",
)
ZERO_UNKNOWN_TOPLEVEL = Code(
    "zero.unknown_toplevel",
    "DeepSpeed reads its top level with dict.get: a misspelt key (gradient_accumulation_step) is silently"
    " ignored there. Here it is refused.",
)

CONFIG_MISSING_FILE = Code("config.missing_file", "The config file named on the command line does not exist.")
CONFIG_IS_DIRECTORY = Code("config.is_directory", "A directory was given where a YAML file is wanted.")
CONFIG_UNREADABLE = Code(
    "config.unreadable",
    "The operating system refuses to read the file (permissions, a broken link, a device).",
)
CONFIG_TOO_LARGE = Code(
    "config.too_large",
    "A config file larger than 1 MiB is refused: it is almost always a data file given by mistake.",
)
CONFIG_NOT_UTF8 = Code(
    "config.not_utf8", "Config files are UTF-8 text. The line is where the first foreign byte stands."
)
CONFIG_EMPTY_FILE = Code("config.empty_file", "The file holds no settings: it is empty or all comments.")
CONFIG_NOT_A_MAPPING = Code(
    "config.not_a_mapping",
    "The top level of the file must be `key: value` lines, not a list or a single value.",
)
CONFIG_SEVERAL_DOCUMENTS = Code(
    "config.several_documents",
    "`---` starts a second YAML document. A config is one document; the second would be ignored by most"
    " readers.",
)
CONFIG_YAML_TAB = Code(
    "config.yaml_tab", "YAML forbids tabs for indentation. Most editors can convert them to spaces."
)
CONFIG_YAML_SYNTAX = Code(
    "config.yaml_syntax",
    "The text is not YAML. Frequent reasons: a missing space after a colon, an unclosed quote, uneven"
    " indentation, `: ` inside an unquoted value.",
)
CONFIG_YAML_TAG = Code(
    "config.yaml_tag",
    "Tags such as `!!python/object` make other readers build objects and run code. Only plain values are"
    " read.",
)
CONFIG_YAML_BOMB = Code(
    "config.yaml_bomb",
    "Aliases of aliases expand to an enormous value. Nothing is expanded beyond 50,000 values.",
)
CONFIG_YAML_DEPTH = Code(
    "config.yaml_depth", "The file is nested more than 32 levels deep; settings need about five."
)
CONFIG_YAML_RECURSION = Code(
    "config.yaml_recursion", "An alias refers to the value it stands in, which has no finite meaning."
)
CONFIG_YAML_ALIAS = Code("config.yaml_alias", "`*name` refers to an anchor `&name` that is not above it.")
CONFIG_YAML_KEY = Code("config.yaml_key", "A key is a list or a mapping. Keys are words.")
CONFIG_YAML_MERGE = Code(
    "config.yaml_merge",
    "`<<:` merges a mapping (or a list of mappings) into another; something else was given.",
)
CONFIG_DUPLICATE_KEY = Code(
    "config.duplicate_key",
    "The same key stands twice in one mapping. Most readers silently take the last; here it is an error.",
)
CONFIG_JSON_SYNTAX = Code(
    "config.json_syntax",
    "The file is not JSON. In a DeepSpeed file comments and commas too many pass, as with DeepSpeed itself"
    " (Hjson); NaN and unquoted keys do not.",
)
CONFIG_JSON_TEMPLATE = Code(
    "config.json_template",
    "A word without quotes stands where a value belongs: the placeholder of a template. DeepSpeed's reader"
    " (Hjson) would take it, and the rest of the line, as a text.",
)
CONFIG_OVERRIDE = Code(
    "config.override",
    "Overrides on the command line are written `section.key=value`, for example"
    " `training.learning_rate=1e-4`.",
)
CONFIG_VARIABLE = Code(
    "config.variable",
    "A value holds a variable of a shell ($NAME, the same in braces, or %NAME%), and nothing expands it in a"
    " config: a folder of that very name would be made. The same goes for ~NAME, the home of a user whom this"
    " machine does not know. Write the value itself, or ~ for your home; on the command line the shell"
    " expands it before.",
)
CONFIG_EXTENSION = Code(
    "config.extension",
    "A block at the top level whose name begins with x- holds anchors for the rest of the file. Nothing of it"
    " is read by itself.",
)
CONFIG_LOOKALIKE = Code(
    "config.lookalike",
    "A character that looks like one of YAML's, of JSON's or of a number is another one: a full-width colon"
    " or comma, a curly quote, a space that is none, something invisible. Write the plain one that the"
    " message shows.",
)
CONFIG_UNKNOWN_VARIABLE = Code(
    "config.unknown_variable",
    "Variables `PACELINE_<SECTION>__<KEY>` set config keys; this one names no section, or has one underscore"
    " where two belong and so would set nothing.",
)
CONFIG_SECTION = Code(
    "config.section",
    "A section (model, data, training, lora, generation, launch) holds keys; a bare value was given.",
)
CONFIG_NOT_A_CONFIG = Code(
    "config.not_a_config",
    "A stored effective config (config.json of a run) does not fit this version of Paceline.",
)
CONFIG_UNKNOWN_KEY = Code(
    "config.unknown_key",
    "No such key. A misspelt key would silently leave its default in force, so it is refused; the nearest"
    " known key is named.",
)
CONFIG_CONFLICT = Code(
    "config.conflict",
    "Two spellings of one setting, or the same key twice in one layer, with different values. Equal values"
    " are fine; different layers override each other.",
)
CONFIG_TYPE = Code(
    "config.type",
    "The value has the wrong kind: a word where a number belongs, a list where a word belongs, nothing at"
    ' all. `5e-5` and "2e-5" are numbers.',
)
CONFIG_VALUE = Code(
    "config.value",
    "The value is of the right kind but not one of the allowed words or not in the allowed range.",
)
CONFIG_TRANSLATED = Code(
    "config.translated", "A legacy spelling was read as its modern key. Nothing to do; the line says which."
)
CONFIG_NO_EFFECT = Code(
    "config.no_effect",
    "A key of Transformers or LLaMA-Factory that needs no setting here, with what happens instead.",
)
CONFIG_NOT_GRANTED = Code(
    "config.not_granted",
    "A key of Transformers or LLaMA-Factory asks for something that is not done; the run starts without it.",
)
CONFIG_NOT_SUPPORTED = Code(
    "config.not_supported",
    "A key of Transformers or LLaMA-Factory asks for something that is not done and would change the run; it"
    " is refused.",
)
CONFIG_DEEPSPEED_BOTH = Code(
    "config.deepspeed_both",
    "`deepspeed:` holds `config_path` and settings; it is either a file or the settings themselves.",
)
CONFIG_LORA_OFF = Code(
    "config.lora_off", "Adapter settings stand beside `finetuning_type: full` or `lora: null` in one layer."
)
CONFIG_FOREIGN_MISSING = Code(
    "config.foreign_missing",
    "A DeepSpeed or FSDP file that the config names is not there. Reading the config warns; a start is"
    " refused.",
)
CONFIG_FOREIGN_AS_CONFIG = Code(
    "config.foreign_as_config",
    "A DeepSpeed, Accelerate or FSDP file was given as the config. Such files are named inside one:"
    " deepspeed, accelerate_config, fsdp_config.",
)
CONFIG_OTHER_PROGRAM = Code(
    "config.other_program",
    "The config is a file of another training program (axolotl, torchtune, verl, OpenRLHF, ms-swift,"
    " LLaMA-Factory, TRL …). What of it has a meaning here is read, or the message says how a config of"
    " Paceline's own would begin.",
)
CONFIG_FOREIGN_NOT_TAKEN = Code(
    "config.foreign_not_taken",
    "A setting of another system's file that Paceline does not take over, with the reason.",
)
CONFIG_FILE_VALUE_OVERRIDDEN = Code(
    "config.file_value_overridden",
    "The YAML (or a higher layer) sets a value that the DeepSpeed, FSDP or Accelerate file sets too. The"
    " higher layer wins; both are named.",
)

LAUNCH_OPTION_WINS = Code(
    "launch.option_wins",
    "An option of the launcher around (accelerate launch --mixed_precision bf16) and the YAML say two things."
    " The option, given with the command, runs.",
)
LAUNCH_OPTION_OVERRIDDEN = Code(
    "launch.option_overridden",
    "What the launcher around says gives way: its own default to the YAML, its option to a PACELINE_ variable"
    " or the command line.",
)
LAUNCH_OPTIONS_TAKEN = Code(
    "launch.options_taken",
    "Options of the launcher around that were taken into the config, each with its variable.",
)
LAUNCH_NO_EFFECT = Code(
    "launch.no_effect", "A variable or option of the launcher around sets nothing here; the reason is named."
)

ACCELERATE_UNKNOWN_KEY = Code("accelerate.unknown_key", "Accelerate's config file has no such key.")
ACCELERATE_NOT_BUILT = Code(
    "accelerate.not_built",
    "The Accelerate file asks for something that is not done here (TPUs, SageMaker, 8-bit products); the"
    " reason is named.",
)

FSDP_OFFLOAD = Code("fsdp.offload", "Offload to the CPU goes with full_shard and shard_grad_op.")
FSDP_VALUE = Code(
    "fsdp.value", "A value of the FSDP settings is not one of the allowed words or of the wrong kind."
)
FSDP_NOT_BUILT = Code(
    "fsdp.not_built", "An FSDP setting that would change what is trained and that is not built."
)
FSDP_UNKNOWN_KEY = Code("fsdp.unknown_key", "FSDP has no such setting, with or without the prefix fsdp_.")

TRAIN_OPTIM_ARGS = Code(
    "train.optim_args",
    "optim_args hands options to the optimizer's own class: its names and the kinds of values are those of"
    " torch (or of Transformers' Adafactor).",
)

PREC_FP16_AND_BF16 = Code(
    "prec.fp16_and_bf16",
    "fp16 and bf16 are two answers to one question. bf16 has float32's range and needs no loss scaling; fp16"
    " is for devices without bf16.",
)
PREC_AMP_ZERO = Code("prec.amp_zero", "DeepSpeed's `amp` block (Apex) does not work with ZeRO.")

PEFT_QUANT_FULL = Code(
    "peft.quant_full", "Quantised weights cannot be trained in full; adapters can be trained on top (QLoRA)."
)

SEC_SECRET_VALUE = Code(
    "sec.secret_value",
    "A value of the config is, or holds, the value of an environment variable whose name speaks of a token,"
    " key, secret or password. It would be written into config.json and plan.json and shown to trackers.",
)
SEC_NO_REMOTE_CODE = Code(
    "sec.no_remote_code",
    "trust_remote_code: true was given where no code is needed (a model made from scratch) or none is pinned"
    " (a hub name without a revision), as other programs' files do for every model. It is read as false and"
    " no code runs; a model that needs its own code is refused when it is loaded, and takes the 40-digit"
    " commit in `model.revision`.",
)
SEC_SECRET_ON_CLI = Code(
    "sec.secret_on_cli",
    "A secret in a config or on the command line is visible to `ps`, saved with the run and sent to trackers."
    " Keep it in the environment.",
)
