"""Codes of ``paceline evaluate`` and ``paceline generate``."""

from __future__ import annotations

from paceline.core.diagnostics import Code

EVALUATION_JOB = Code(
    "evaluation.job",
    "An option of `paceline evaluate`, `generate` or `chat` cannot be used, or two of them contradict each"
    " other. The message says which values are possible.",
)
EVALUATION_LOSS = Code(
    "evaluation.loss",
    "The model's loss on some rows is no finite number: its weights are damaged, or its dtype overflows."
    " There is no loss and no perplexity then; the first rows are named.",
)
EVALUATION_METRIC = Code(
    "evaluation.metric",
    "There is no metric of this name. Built-in names are listed; a metric of your own is module:function,"
    " called with (answer, expected) and returning a number.",
)
EVALUATION_METRIC_FAILED = Code(
    "evaluation.metric_failed",
    "A metric raised an exception, ended its process, or took longer than its time limit for some rows. These"
    " rows count as 0; the first ones are named.",
)
EVALUATION_METRIC_PACKAGE = Code(
    "evaluation.metric_package",
    "A metric needs a package that is not installed. Install it with the line in the message.",
)
EVALUATION_NO_EXPECTED = Code(
    "evaluation.no_expected",
    "A metric compares answers with expected ones, but rows have none: a last turn of the assistant, or a"
    " column answer, completion, response, output, solution or ground_truth.",
)
EVALUATION_NO_ROOM = Code(
    "evaluation.no_room", "The model has fewer positions than a prompt has tokens: nothing can be generated."
)
EVALUATION_OUTPUT = Code(
    "evaluation.output",
    "The file of `paceline generate --to` exists, or was begun by another command (other rows, model or"
    " settings). Give another file, or --overwrite.",
)
EVALUATION_RANK = Code(
    "evaluation.rank",
    "A process of an evaluation ended with an error. Its own message is above. What `paceline generate` has"
    " done stays: the same command goes on from there.",
)
EVALUATION_JUDGE = Code(
    "evaluation.judge",
    "The judge's answers hold no score (a number from 0 to 10 behind `Score:`) for some rows. These rows do"
    " not count in the mean.",
)
EVALUATION_LM_EVAL = Code(
    "evaluation.lm_eval",
    "`paceline evaluate --lm-eval` runs tasks of lm-evaluation-harness: it must be installed (the extra"
    " lm-eval), and a task is a name that it knows or a YAML file of your own with the line `task: NAME`.",
)
