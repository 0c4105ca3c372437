"""Codes of the command line, of the demo, of verify, of pictures and trackers."""

from __future__ import annotations

CODES = {
    "cli.defect": "An exception reached the command line that Paceline has no name for. That is a defect of Paceline, not of your config: please report it with the file that the message names, which holds the traceback.",
    "cli.mode": "The scripts of the guide know one mode, training; evaluation is part of it. Write --mode train, and training.eval_strategy for evaluation.",
    "cli.no_run": "The directory given is no run: it does not exist, or it has no plan.json. Name the run directory that `paceline train` printed; the nearest ones are listed.",
    "cli.system": "The operating system refused an operation on a file or folder (missing, no permission, no space). The message gives its reason and the path.",
    "cli.unknown_code": "No diagnostic has the code that was asked about. Give what stands in the brackets of a message, such as run.exists; `paceline explain` alone lists all of them.",
    "cli.unknown_verb": "The word after `paceline` is no verb of it. `paceline --help` lists the verbs; the nearest one is named.",
    "core.target": "A class or function of your own is named as module:Name, with a colon between the module and the name.",
    "core.target_attr": "The module was imported but has nothing of the name after the colon. Correct the name; the nearest ones are listed.",
    "core.target_module": "The module before the colon cannot be imported here. Start from the folder that holds it, or put that folder on PYTHONPATH; if the module itself fails to import, the message shows why.",
    "algorithm.unknown": "No algorithm has this name. Correct training.algorithm; the known names are listed.",
    "reward.unknown": "No built-in reward has this name, and it is not written as module:function. Correct the name in training.rollout.rewards.",
    "bench.options": "The measurement needs at least one step, a micro-batch of at least one row and at least one process.",
    "bench.run_failed": "One of the short runs that the measurement is made of ended with an error; its last lines are shown. Mend what they name, then measure again.",
    "demo.not_empty": "The demo writes into a new directory and overwrites nothing. Give --to with a new directory, or leave --to out: the next free name is taken.",
    "demo.not_writable": "The demo cannot write where it was told to. Give --to with a place that you may write to.",
    "demo.options": "An option of the demo has a value that it cannot work with; the message shows one that it can.",
    "demo.step_failed": "A command that the demo runs ended with an error. The reason stands above this message, with a code of its own.",
    "plot.no_events": "The run has no events yet, so there is nothing to draw. Name a run directory, or wait for its first step.",
    "plot.write": "The picture cannot be written to this path. Give --to with another file.",
    "plan.picture": "The forecast's picture cannot be written to this path. Give --picture with another file.",
    "runlog.events_lost": "Some events of the run could not be written, most often because the disk was full; pictures show a gap there. Training itself went on. Free space on that disk.",
    "runlog.lost": "The system refuses to write the run's events or logs: the disk is full, read-only, over its quota, or a log was deleted. It is said once, when it begins; training goes on, and so do saves where they can be written. Events and lines are lost until there is room again, and their number is told then and at the end.",
    "tracker.failed": "A tracker (TensorBoard, Weights & Biases) raised an error. The run goes on without it; look at the tracker's own logs.",
    "tracker.not_installed": "The package of a tracker named in training.report_to is not installed. Install it as shown, or leave the name out.",
    "tracker.offline": "Weights & Biases writes to a folder of the run only. `wandb sync` in that folder uploads it later.",
    "tracker.unknown": "training.report_to names a tracker that is not known; nothing is sent to it. The known names are listed.",
    "verify.compare_failed": "The two runs of `paceline verify` ended, but their results cannot be read for the comparison. The end of the comparing process's output is shown.",
    "verify.run_failed": "One of the two runs of `paceline verify` ended with an error. Train with the file that is named to see all of its output; --to keeps it.",
}
