"""Diagnostic codes of the library."""

from __future__ import annotations

from paceline.core.diagnostics import Code

API_ARGUMENT = Code(
    "api.argument",
    "A function of the library got an argument that it cannot use. The message says what it takes.",
)
API_NOT_IMPORTABLE = Code(
    "api.not_importable",
    "A function or class given to the library must be found by the ranks, which are other processes: at the"
    " top level of a module that they can import, not in the script itself, a notebook or a function.",
)
API_NO_RUN = Code(
    "api.no_run",
    "The given directory is not a run: it does not exist, or it has no plan.json. Name the run"
    " directory that `paceline train` printed; the nearest ones are listed.",
)
API_ROWS = Code(
    "api.rows",
    "Rows given to the library as Python objects must be mappings of column names to JSON values: texts,"
    " numbers, true, false, null, lists and mappings of these.",
)
API_RUN_FAILED = Code(
    "api.run_failed",
    "A training ended with an error that left no diagnostic behind. Its output and the logs in the run"
    " directory have what is known.",
)
API_LISTENER = Code(
    "api.listener",
    "on_event, or a callback that is an object of the calling process, raised an exception, or had not"
    " finished with all events some time after the end of the run. It is not called again; the training is"
    " not affected.",
)

VERIFY_COMPARE_FAILED = Code(
    "verify.compare_failed",
    "The two runs of `paceline verify` ended, but their results cannot be read for the comparison. The end of"
    " the comparing process's output is shown.",
)

VERIFY_RUN_FAILED = Code(
    "verify.run_failed",
    "One of the two runs of `paceline verify` ended with an error. Train with the file in the"
    " message to see its complete output; --to keeps it.",
)
