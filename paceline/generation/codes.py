"""Codes of writing answers, and of servers that do."""

from __future__ import annotations

from paceline.core.diagnostics import Code

GENERATION_NO_CHAT_TEMPLATE = Code(
    "generation.no_chat_template",
    "The tokenizer has no chat template, so a conversation cannot be rendered for the model. Train"
    " with model.chat_template set.",
)
GENERATION_NO_MODEL = Code(
    "generation.no_model",
    "The folder contains no model that can be loaded. Name a run directory, or a folder written by"
    " `paceline export`.",
)
GENERATION_NO_RUN = Code(
    "generation.no_run", "There is no such folder. Name a run directory or an exported folder."
)
GENERATION_OPTIONS = Code(
    "generation.options",
    "Generation options, from the run's generation section or the options of `paceline chat`: at"
    " least one token, a temperature of 0 or more, top_p above 0 and at most 1, top_k of 0 or more.",
)
GENERATION_RUN_CONFIG = Code(
    "generation.run_config",
    "The run's config.json, which contains the generation options, cannot be read. Restore the"
    " file, or export the model and chat with that folder.",
)
GENERATION_TEMPLATE_COSTLY = Code(
    "generation.template_costly",
    "The model's chat template does not terminate, takes far more CPU time than conversations need, or"
    " gigabytes for one of them. A template is a program by the tokenizer's author, and runs with limits"
    " on CPU time and memory, here as in preparation; use another one.",
)
GENERATION_TEMPLATE_REFUSED = Code(
    "generation.template_refused",
    "The model's chat template raises an error for this conversation; its message is shown. Some"
    " templates do not support a system message, or require the turns to alternate.",
)
GENERATION_TOO_LONG = Code(
    "generation.too_long",
    "The conversation is longer than the model's number of positions. Shorten it, or start a new"
    " one with /new.",
)
GENERATION_STATEFUL = Code(
    "generation.stateful",
    "Rollouts write answers to several prompts at once with a cache of keys, values and states. This model"
    " keeps what it knows of earlier tokens elsewhere, where rows can be neither joined nor repeated.",
)
GENERATION_PORT = Code(
    "generation.port",
    "The server cannot listen on this port: another program uses it, or ports below 1024 are not for you."
    " Choose another with --port, or none: then a free one is taken.",
)

ROLLOUT_SERVER_UNREACHABLE = Code(
    "rollout.server_unreachable",
    "The generation server did not answer before the deadline; refused or broken connections are"
    " retried until then.",
)
ROLLOUT_SERVER_STATUS = Code(
    "rollout.server_status",
    "The generation server refused a request; its status and message are shown. Updating weights"
    " needs a vLLM server started with VLLM_SERVER_DEV_MODE=1.",
)
ROLLOUT_SERVER_ANSWER = Code(
    "rollout.server_answer",
    "The server's reply does not match the request: other token ids, counts or lengths than"
    " requested. Usually the tokenizer differs, or another program runs at that address.",
)
