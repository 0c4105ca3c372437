"""Diagnostic codes used by several rooms: user-defined classes and functions, remote code, unknown names."""

from __future__ import annotations

from paceline.core.diagnostics import Code

CORE_TARGET = Code(
    "core.target",
    "Name your own class or function as module:Name, with a colon between the module and the name.",
)
CORE_TARGET_ATTR = Code(
    "core.target_attr",
    "The module was imported, but it does not define the name after the colon. Correct the name;"
    " similar names are listed.",
)
CORE_TARGET_MODULE = Code(
    "core.target_module",
    "The module before the colon cannot be imported. Start from the folder that contains it, or add"
    " that folder to PYTHONPATH; if the module itself raises while it is imported, the message"
    " shows the error.",
)

ALGORITHM_UNKNOWN = Code(
    "algorithm.unknown",
    "There is no algorithm of this name. Correct training.algorithm; the known names are listed.",
)

STRATEGY_UNKNOWN = Code(
    "strategy.unknown", "distributed_strategy takes the name of a built-in strategy, or module:Class."
)

SEC_TRUST_REMOTE_CODE = Code(
    "sec.trust_remote_code",
    "trust_remote_code runs Python code that comes with the model. For a hub model, pin a commit in"
    " `model.revision`; for a local folder, pin the digest of its Python files and of the"
    " `auto_map` entries of its configs (the message prints it). A tokenizer's code runs only from"
    " the same place; the other models of a run (reference, reward, value) never run code.",
)
