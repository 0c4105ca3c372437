"""Diagnostic codes of the command line."""

from __future__ import annotations

from paceline.core.diagnostics import Code

CLI_DEFECT = Code(
    "cli.defect",
    "An exception reached the command line that Paceline has no name for. That is a defect of Paceline, not"
    " of your config: please report it with the file that the message names, which holds the traceback.",
)
CLI_MODE = Code(
    "cli.mode",
    "The scripts of the guide know one mode, training; evaluation is part of it. Write --mode train, and"
    " training.eval_strategy for evaluation.",
)
CLI_NO_RUN = Code(
    "cli.no_run",
    "The directory given is no run: it does not exist, or it has no plan.json. Name the run directory that"
    " `paceline train` printed; the nearest ones are listed.",
)
CLI_SYSTEM = Code(
    "cli.system",
    "The operating system refused an operation on a file or folder (missing, no permission, no space). The"
    " message gives its reason and the path.",
)
CLI_UNKNOWN_CODE = Code(
    "cli.unknown_code",
    "No diagnostic has the code that was asked about. Give what stands in the brackets of a message, such as"
    " run.exists; `paceline explain` alone lists all of them.",
)
CLI_UNKNOWN_VERB = Code(
    "cli.unknown_verb",
    "The word after `paceline` is no verb of it. `paceline --help` lists the verbs; the nearest one is"
    " named.",
)

VERIFY_COMPARE_FAILED = Code(
    "verify.compare_failed",
    "The two runs of `paceline verify` ended, but their results cannot be read for the comparison. The end of"
    " the comparing process's output is shown.",
)
VERIFY_RUN_FAILED = Code(
    "verify.run_failed",
    "One of the two runs of `paceline verify` ended with an error. Train with the file that is named to see"
    " all of its output; --to keeps it.",
)

PLAN_SUBJECT = Code(
    "plan.subject",
    "A plan is made of a config, or of --model with --hardware; one of them is missing, or both name the"
    " model.",
)
PLAN_ALGORITHM = Code(
    "plan.algorithm", "--algorithm names no algorithm that the forecast knows. The known ones are listed."
)
PLAN_BITS = Code(
    "plan.bits", "A base packed to 4 bits is trained by an adapter only. Give --lora with --bits."
)
PLAN_NO_CLOSED_FORM = Code(
    "plan.no_closed_form",
    "A simulation is compared with the plan's own formulas, and this plan has none: a strategy of your own,"
    " or a model whose sizes are not known here.",
)
PLAN_NO_TORCH = Code(
    "plan.no_torch",
    "A simulation runs the real module on torch's meta device and needs torch and transformers. Install them,"
    " or leave --simulate out.",
)

LAUNCH_MANY_TIMES = Code(
    "launch.many_times",
    "A launcher has started this command in several processes, and the command starts processes itself: each"
    " would plan and start the whole job. Start it once a node, or let the launcher start `main.py` in each"
    " process.",
)
