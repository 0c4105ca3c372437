"""Codes of the training loop, of evaluation, and of models that answer."""

from __future__ import annotations

_RUN = {
    "training.system_refused": "The operating system refused something that the run cannot do without: the disk is full or out of inodes, over its quota, read-only, or there is no permission. The file is named; what was published before is untouched.",
    "training.exception": "A rank raised an exception that has no name of its own: from a library, from code of yours, or from a defect. The traceback is in that rank's log.",
    "training.out_of_memory": "A rank ran out of memory. The message names what would fit on this machine by the planner's search (the next strategy, offload, a smaller micro-batch with more accumulation); `paceline plan` shows what takes the room.",
    "training.nonfinite": "The loss or the gradient is not a number any more, and going on would train nothing. Lower the rate, lengthen the warm-up, use bf16 instead of fp16, and resume from the last checkpoint.",
    "training.overflow": "fp16 gradients overflowed: the update was left out and the loss scale lowered. A few at the start are usual; many mean that bf16 is needed.",
    "training.no_gradient": "Steps had a loss and a gradient of exactly 0, so nothing was learnt in them: nothing that is trained takes part, or the weights have run so far away that the softmax is flat. Lower the rate, and go on from a checkpoint before it.",
    "training.diverged": "The loss of the last steps lies far above where the run began. Lower the rate or lengthen the warm-up, and go on from a checkpoint before it.",
    "training.no_labels": "A step had no token to learn on any rank, so no update was made. Check data.train_on and data.max_length.",
    "training.no_steps": "The data cannot fill one step. Set dataloader_drop_last: false, take a smaller batch, or start fewer processes.",
    "training.rows_differ": "Ranks that share one copy of the model were given different rows. With a strategy of your own, data_parallel_rank has to be equal within a tp, cp or pp group; otherwise this is a defect to report.",
    "training.weights_differ": "Ranks that hold copies of the same weights hold different numbers. A strategy of your own has to average every gradient once, in the same order on all ranks; otherwise this is a defect to report.",
    "training.plan_ranks": "A launcher has started more or fewer ranks than the plan given to them is for. Start as many as planned, or start from the YAML.",
    "training.plan_file": "The plan that the parent process writes for its ranks cannot be read. Start with `paceline train config.yaml`.",
}
_SETTINGS = {
    "training.lr_scheduler_type": "The schedule is not available here, for the reason that is shown. The available ones are listed.",
    "training.lr_scheduler_kwargs": "training.lr_scheduler_kwargs holds an argument that the schedule does not take. The library's message names it.",
    "training.metric_for_best_model": "training.metric_for_best_model names a metric that this algorithm does not measure. Those it measures are listed.",
    "training.best_checkpoint": "The best checkpoint was to be loaded at the end, and it is gone. Keep more by training.save_total_limit.",
    "training.eval_rows": "The evaluation did not see every row exactly once, so its loss is not the mean it should be. That is a defect of Paceline: please report it.",
}
_ANSWERS = {
    "training.no_checkpoint": "The run has no complete checkpoint to ask. Train with training.save_strategy: steps.",
    "training.no_run": "The directory given holds no run. Name a run directory.",
    "training.questions": "The file of questions is missing, empty or not JSON lines with a prompt.",
    "generation.no_chat_template": "The tokenizer has no chat template, so a conversation cannot be written for the model. Train with model.chat_template set.",
    "generation.no_model": "The folder holds no model that can be loaded. Name a run directory, or a folder that `paceline export` made.",
    "generation.no_run": "There is no such folder. Name a run directory or an exported folder.",
    "generation.options": "How answers are written, by the run's generation section or the options of `paceline chat`: at least one token, a temperature from 0 up, top_p above 0 and at most 1, top_k from 0 up.",
    "generation.run_config": "The run's config.json, which says how answers are written, cannot be read. Put the file back, or export the model and chat with that folder.",
    "generation.template_costly": "The model's chat template loops without end or takes gigabytes for one conversation. A template is a program of whoever made the tokenizer, run within bounds of CPU time and memory, here as in preparation; take another one.",
    "generation.template_refused": "The model's chat template fails on this conversation; its own words are shown. Some templates take no system message, or want the turns to alternate.",
    "generation.too_long": "The conversation is longer than the positions of the model. Shorten it, or start anew with /new.",
}
CODES = {**_RUN, **_SETTINGS, **_ANSWERS}
