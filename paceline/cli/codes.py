"""Diagnostic codes of the command line."""

from __future__ import annotations

from paceline.core.diagnostics import Code

CLI_DEFECT = Code(
    "cli.defect",
    "An exception without a code of its own reached the command line. This is a defect of Paceline,"
    " not of your config: please report it with the file in the message, which contains the"
    " traceback.",
)
CLI_MODE = Code(
    "cli.mode",
    "The guide's scripts have one mode, train; evaluation is part of it. Use --mode train, and"
    " training.eval_strategy for evaluation.",
)
CLI_FLAG_NOT_KEPT = Code(
    "cli.flag_not_kept",
    "main.py takes LLaMA-Factory's flags. One of them changes the run in a way that is not supported here, or"
    " is no flag of LLaMA-Factory, so that the run would be another one.",
)
CLI_TWO_COMMAND_LINES = Code(
    "cli.two_command_lines",
    "main.py takes its own flags (--config, --mode, --algorithm) or LLaMA-Factory's (--stage, --do_train);"
    " one command line has both.",
)
CLI_OPTION = Code(
    "cli.option", "An option's value is not one that the verb takes; the message says which ones are."
)
CLI_SYSTEM = Code(
    "cli.system",
    "The operating system refused an operation on a file or folder (missing, no permission, no space). The"
    " message gives its reason and the path.",
)
CLI_PAGE_PACKAGES = Code(
    "cli.page_packages",
    "The page needs packages that only it uses (starlette, uvicorn). Install them with the line in the"
    " message; `paceline report` writes the same page as a file without them.",
)
CLI_SERVE_PACKAGES = Code(
    "cli.serve_packages",
    "`paceline serve` needs packages that only servers use (starlette, uvicorn). Install them with the line"
    " in the message.",
)
CLI_PORT = Code(
    "cli.port",
    "The page cannot listen on this port: another program uses it, or ports below 1024 are not for you."
    " Choose another with --port, or none: then a free one is taken.",
)
CLI_UNKNOWN_CODE = Code(
    "cli.unknown_code",
    "There is no diagnostic with this code. Give the text in the brackets of a message, such as"
    " run.exists; `paceline explain` alone lists all of them.",
)
CLI_UNKNOWN_VERB = Code(
    "cli.unknown_verb",
    "The word after `paceline` is not one of its commands. `paceline --help` lists them; the"
    " nearest one is shown.",
)

PLAN_SUBJECT = Code(
    "plan.subject",
    "A plan needs a config, or --model with --hardware; one of them is missing, or both name the model.",
)
PLAN_ALGORITHM = Code(
    "plan.algorithm", "--algorithm is unknown to the forecast. The known algorithms are listed."
)
PLAN_BITS = Code(
    "plan.bits",
    "A base model quantised to 4 bits can only be trained with an adapter. Give --lora with --bits.",
)
PLAN_NO_CLOSED_FORM = Code(
    "plan.no_closed_form",
    "A simulation is compared with the plan's own formulas, but this plan has none: it uses your"
    " own strategy, or a model of unknown size.",
)
PLAN_NO_TORCH = Code(
    "plan.no_torch",
    "A simulation runs the real module on torch's meta device and needs torch and transformers. Install them,"
    " or leave --simulate out.",
)

LAUNCH_MANY_TIMES = Code(
    "launch.many_times",
    "A launcher has started this command in several processes, but the command starts processes"
    " itself: each would plan and start the complete job. Start it once per node, or let the"
    " launcher start `main.py` in each process.",
)
