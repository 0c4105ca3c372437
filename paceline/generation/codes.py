"""Codes of writing answers, and of servers that do."""

from __future__ import annotations

from paceline.core.diagnostics import Code

GENERATION_NO_CHAT_TEMPLATE = Code(
    "generation.no_chat_template",
    "The tokenizer has no chat template, so a conversation cannot be written for the model. Train with"
    " model.chat_template set.",
)
GENERATION_NO_MODEL = Code(
    "generation.no_model",
    "The folder holds no model that can be loaded. Name a run directory, or a folder that `paceline export`"
    " made.",
)
GENERATION_NO_RUN = Code(
    "generation.no_run", "There is no such folder. Name a run directory or an exported folder."
)
GENERATION_OPTIONS = Code(
    "generation.options",
    "How answers are written, by the run's generation section or the options of `paceline chat`: at least one"
    " token, a temperature from 0 up, top_p above 0 and at most 1, top_k from 0 up.",
)
GENERATION_RUN_CONFIG = Code(
    "generation.run_config",
    "The run's config.json, which says how answers are written, cannot be read. Put the file back, or export"
    " the model and chat with that folder.",
)
GENERATION_TEMPLATE_COSTLY = Code(
    "generation.template_costly",
    "The model's chat template loops without end or takes gigabytes for one conversation. A template is a"
    " program of whoever made the tokenizer, run within bounds of CPU time and memory, here as in"
    " preparation; take another one.",
)
GENERATION_TEMPLATE_REFUSED = Code(
    "generation.template_refused",
    "The model's chat template fails on this conversation; its own words are shown. Some templates take no"
    " system message, or want the turns to alternate.",
)
GENERATION_TOO_LONG = Code(
    "generation.too_long",
    "The conversation is longer than the positions of the model. Shorten it, or start anew with /new.",
)
GENERATION_STATEFUL = Code(
    "generation.stateful",
    "Rollouts answer several prompts at once, padded on the left; a model that carries a state from token to"
    " token would mix the padding into it.",
)

ROLLOUT_SERVER_UNREACHABLE = Code(
    "rollout.server_unreachable",
    "The server that writes answers did not answer within its deadline; connections that are refused or cut"
    " are tried again until then.",
)
ROLLOUT_SERVER_STATUS = Code(
    "rollout.server_status",
    "The server that writes answers refused a call; its status and what it said are shown. New weights need a"
    " vLLM server started with VLLM_SERVER_DEV_MODE=1.",
)
ROLLOUT_SERVER_ANSWER = Code(
    "rollout.server_answer",
    "The server's answer is none to the request: other token ids, numbers or lengths than asked for. Another"
    " tokenizer or another program at that address is the usual cause.",
)
