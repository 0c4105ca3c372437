"""Diagnostic codes used by several rooms: user-defined classes and functions, remote code, unknown names."""

from __future__ import annotations

from paceline.core.diagnostics import Code

CORE_TARGET = Code(
    "core.target",
    "A class or function of your own is named as module:Name, with a colon between the module and the name.",
)
CORE_TARGET_ATTR = Code(
    "core.target_attr",
    "The module was imported but has nothing of the name after the colon. Correct the name; the nearest ones"
    " are listed.",
)
CORE_TARGET_MODULE = Code(
    "core.target_module",
    "The module before the colon cannot be imported here. Start from the folder that holds it, or put that"
    " folder on PYTHONPATH; if the module itself fails to import, the message shows why.",
)

ALGORITHM_UNKNOWN = Code(
    "algorithm.unknown", "No algorithm has this name. Correct training.algorithm; the known names are listed."
)

STRATEGY_UNKNOWN = Code("strategy.unknown", "distributed_strategy is a built-in name or module:Class.")

SEC_TRUST_REMOTE_CODE = Code(
    "sec.trust_remote_code",
    "trust_remote_code runs Python that comes with the model. A hub name is pinned by a commit in"
    " `model.revision`, a folder by the digest of its Python files and of what its configs say of them"
    " (`auto_map`): the message prints it. Code of the tokenizer runs only from the same place; other models"
    " of a run (reference, reward, value) run none.",
)
