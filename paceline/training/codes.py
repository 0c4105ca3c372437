"""Diagnostic codes of the training loop, its metrics and its trackers."""

from __future__ import annotations

from paceline.core.diagnostics import Code

TRACKER_FAILED = Code(
    "tracker.failed",
    "A tracker (TensorBoard, wandb, MLflow, SwanLab, Trackio or your own) raised an error. The run continues"
    " without it; see the tracker's own logs.",
)
TRACKER_NOT_ONE = Code(
    "tracker.not_one",
    "Your own tracker is a class that is made with run_dir, name and config (by name), and has"
    " log(step, values) and close().",
)
TRACKER_SLOW = Code(
    "tracker.slow",
    "A tracker has not answered a call for half a minute. It works beside training, which goes on; its points"
    " wait, and it gets them if it answers.",
)
TRACKER_DROPPED = Code(
    "tracker.dropped",
    "A tracker takes points more slowly than the run makes them. Those that find no room are dropped for this"
    " tracker alone; the run's events have every step.",
)
TRACKER_UNSENT = Code(
    "tracker.unsent",
    "At its end a run waits ten seconds for its trackers, and not at all for one that has been silent for as"
    " long. What was not sent then is counted; the run's events have every step.",
)

CALLBACK_FAILED = Code(
    "callback.failed",
    "A callback of training.callbacks raised an exception. One that raises while it is made ends the run"
    " before its first step; one that raises later is not called again, and training goes on.",
)
CALLBACK_SLOW = Code(
    "callback.slow",
    "A callback takes so long that training waits for it no more: it is called beside training, later than"
    " its events. A stop that it requests comes later, too.",
)
CALLBACK_STOPS = Code(
    "callback.stops",
    "A callback has set should_stop: all ranks stop after this step, with a checkpoint.",
)
CALLBACK_NOT_ONE = Code(
    "callback.not_one",
    "A callback is a class with some of the methods on_step_end, on_evaluate, on_save and on_train_end, made"
    " with its options, or a function that gets each of these events.",
)

MODEL_ATTENTION = Code(
    "model.attention",
    "Transformers has no attention implementation of this name for the model's class, or its"
    " package is not installed. attn_implementation: auto always works.",
)

TRAIN_COMPILE_BACKEND = Code(
    "train.compile_backend",
    "torch.compile has no backend of this name. Remove torch_compile_backend to use torch's"
    " default, inductor.",
)
TRAIN_COMPILE_MODE = Code(
    "train.compile_mode", "torch.compile has no such mode. Remove torch_compile_mode to use the default."
)

TRIAL_FAILED = Code(
    "trial.failed",
    "A check that needs imports ran in a separate process, and the library refused with the message"
    " shown. The processes of the run would have the same problem.",
)
TRIAL_NOT_HERE = Code(
    "trial.not_here",
    "The model's config.json is not on this machine, so its class could not be checked before the start.",
)

LAUNCH_OTHER_PROCESSES = Code(
    "launch.other_processes",
    "The YAML's launch section requests another number of processes or nodes than the launcher has"
    " started. The launcher's number is used; correct the line or remove it.",
)
LAUNCH_RESTARTS = Code(
    "launch.restarts",
    "torchrun runs the same command again after a failure, and without"
    " training.resume_from_checkpoint: auto it does not resume from the run's last checkpoint. Set"
    " it to auto.",
)

RUN_RESULT_LOST = Code(
    "run.result_lost",
    "Training had finished but result.json could not be written, usually because the disk was full."
    " The exit code is 1, so that the run does not count as finished; checkpoints published before"
    " are intact.",
)

WORLD_MISMATCH = Code(
    "world.mismatch",
    "A rank was started differently from rank 0: with another config, other data, code or"
    " environment. Start all ranks alike.",
)
WORLD_PEER_LOST = Code(
    "world.peer_lost",
    "A rank lost the connection to another rank, which reported no error. See that rank's log; a"
    " process that was killed (kill -9, out of memory) reports none.",
)

STRATEGY_PIPELINE_GENERATION = Code(
    "strategy.pipeline_generation",
    "A pipeline cannot generate answers during training. Export a checkpoint and use that, or train"
    " with fsdp.",
)

TRAINING_SYSTEM_REFUSED = Code(
    "training.system_refused",
    "The operating system refused an operation that the run needs: the disk is full or out of"
    " inodes, over its quota, read-only, or permission is denied. The message names the file;"
    " checkpoints published before are unchanged.",
)
TRAINING_EXCEPTION = Code(
    "training.exception",
    "A rank raised an exception without a code of its own: from a library, from your code, or from"
    " a defect. The traceback is in that rank's log.",
)
TRAINING_OUT_OF_MEMORY = Code(
    "training.out_of_memory",
    "A rank ran out of memory. The message lists what would fit on this machine according to the"
    " planner's search (the next strategy, offload, a smaller micro-batch with more accumulation);"
    " `paceline plan` shows the memory by part.",
)
TRAINING_NONFINITE = Code(
    "training.nonfinite",
    "The loss or the gradient is no longer a number, so further training would be useless. Lower"
    " the learning rate, lengthen the warm-up, use bf16 instead of fp16, and resume from the last"
    " checkpoint.",
)
TRAINING_OVERFLOW = Code(
    "training.overflow",
    "fp16 gradients overflowed: the update was skipped and the loss scale lowered. A few at the"
    " start are normal; many mean that bf16 is needed.",
)
TRAINING_NO_GRADIENT = Code(
    "training.no_gradient",
    "Steps had a loss and a gradient of exactly 0, so they changed nothing: no trained parameter"
    " takes part in the loss, or the weights have diverged so far that the softmax is flat. Lower"
    " the learning rate, and resume from an earlier checkpoint.",
)
TRAINING_DIVERGED = Code(
    "training.diverged",
    "The loss of the last steps is far above its value at the start of the run. Lower the learning"
    " rate or lengthen the warm-up, and resume from an earlier checkpoint.",
)
TRAINING_NO_LABELS = Code(
    "training.no_labels",
    "A step had no token with loss on any rank, so no update was made. Check data.train_on and"
    " data.max_length; where answers are generated, check the reward: answers without a score, and"
    " with filter_groups those of prompts whose answers all have the same score, are dropped.",
)
TRAINING_NO_PROMPTS = Code(
    "training.no_prompts",
    "On-policy distillation lets the student answer the prompts of rows: the text before their last"
    " tokens with loss. No row has a prompt, because they are plain texts or all their tokens carry"
    " loss. Give conversations or instructions and data.train_on: assistant, or set lmbda: 0.",
)
TRAINING_EVAL_GENERATE = Code(
    "training.eval_generate",
    "training.eval_generate lets the model answer evaluation rows: the text before their last tokens with"
    " loss. No row has such a prompt and an answer to compare with, because they are plain texts, all their"
    " tokens carry loss, or prompts come without an answer.",
)
TRAINING_NO_STEPS = Code(
    "training.no_steps",
    "There are not enough data for one step. Set dataloader_drop_last: false, use a smaller batch,"
    " or start fewer processes.",
)
TRAINING_ROWS_DIFFER = Code(
    "training.rows_differ",
    "Ranks that share one copy of the model received different rows. In your own strategy,"
    " data_parallel_rank must be equal within a tp, cp or pp group; otherwise please report it as a"
    " defect.",
)
TRAINING_WEIGHTS_DIFFER = Code(
    "training.weights_differ",
    "Ranks that hold copies of the same weights have different values. Your own strategy must"
    " average every gradient once, in the same order on all ranks; otherwise please report it as a"
    " defect.",
)
TRAINING_PLAN_RANKS = Code(
    "training.plan_ranks",
    "A launcher has started more or fewer ranks than its plan is for. Start as many as planned, or"
    " start from the YAML.",
)
TRAINING_PLAN_FILE = Code(
    "training.plan_file",
    "The plan that the parent process writes for its ranks cannot be read. Start with `paceline train"
    " config.yaml`.",
)
TRAINING_LR_SCHEDULER_TYPE = Code(
    "training.lr_scheduler_type",
    "The schedule is not available; the reason and the available ones are shown.",
)
TRAINING_LR_SCHEDULER_KWARGS = Code(
    "training.lr_scheduler_kwargs",
    "training.lr_scheduler_kwargs contains an argument that the schedule does not have. The"
    " library's message names it.",
)
TRAINING_METRIC_FOR_BEST_MODEL = Code(
    "training.metric_for_best_model",
    "training.metric_for_best_model names a metric that this algorithm does not measure. Its"
    " metrics are listed.",
)
TRAINING_BEST_CHECKPOINT = Code(
    "training.best_checkpoint",
    "The best checkpoint should be loaded at the end, but it is neither in the run's folder nor beside the"
    " checkpoint that is resumed from. Bring it back, or set training.load_best_model_at_end: false.",
)
TRAINING_NOTHING_LEFT = Code(
    "training.nothing_left",
    "The checkpoint that is resumed from has all steps, or early stopping or a callback ended its run:"
    " nothing is trained. To train on, raise max_steps, num_train_epochs or early_stopping_patience, or"
    " remove the callback.",
)
TRAINING_EVAL_ROWS = Code(
    "training.eval_rows",
    "The evaluation did not process every row exactly once, so its loss is not the correct mean."
    " This is a defect of Paceline: please report it.",
)
TRAINING_NO_CHECKPOINT = Code(
    "training.no_checkpoint",
    "The run has no complete checkpoint to evaluate. Train with training.save_strategy: steps.",
)
TRAINING_NO_RUN = Code("training.no_run", "The given directory is not a run. Name a run directory.")
TRAINING_QUESTIONS = Code(
    "training.questions", "The file of questions is missing, empty or not JSON lines with a prompt."
)

CHECKPOINT_OTHER_STRATEGY = Code(
    "checkpoint.other_strategy",
    "The run's strategy cannot read the checkpoint of the strategy that saved it: your own class"
    " stores its state in its own format, and torch and DeepSpeed store fp16's loss scale"
    " differently. Resume under the strategy that saved it, or export the model and start a new run"
    " from it.",
)

RESUME_ADAPTER = Code(
    "resume.adapter",
    "The checkpoint and the config disagree about an adapter: one has none, or rank, scale or"
    " layers differ. Resume with the lora section it was saved with, or start a new run.",
)
RESUME_OTHER_ALGORITHM = Code(
    "resume.other_algorithm",
    "The checkpoint belongs to a run with another algorithm, whose rows, heads and models differ."
    " Resume with the algorithm that saved it, or export the model and start a new run from it.",
)
RESUME_OTHER_MODEL = Code(
    "resume.other_model",
    "The checkpoint belongs to a model with other sizes than the config's, so its weights do not"
    " fit, or only a part of them would be used. Use the model it was saved from, or start a new"
    " run.",
)
RESUME_OTHER_OPTIMIZER = Code(
    "resume.other_optimizer",
    "The checkpoint contains the state of another optimizer, or of the same one with options that"
    " change its state. Resume with the optimizer that saved it, or export the model and start a"
    " new run with a new optimizer state.",
)
RESUME_BASE_MODEL = Code(
    "resume.base_model",
    "The adapter in the checkpoint was trained on other base weights than these. Use the model and"
    " revision it was trained on.",
)
RESUME_CONVERTED = Code(
    "resume.converted",
    "The checkpoint was converted from another program's. Its weights, step and optimizer state go on; data,"
    " batch and schedule are those of this config, since nothing is known of the former ones.",
)
RESUME_DATA_NOT_COMPARED = Code(
    "resume.data_not_compared",
    "The checkpoint's data fingerprint was made by another version of Paceline, Transformers or"
    " tokenizers, with another definition, so it is unknown whether the data are the same. The run"
    " continues; make sure that data, tokenizer and template have not changed.",
)
RESUME_OTHER_STRATEGY = Code(
    "resume.other_strategy",
    "The run resumes under another strategy than the one that saved the checkpoint. Checkpoints"
    " contain complete tensors in blocks, and each process reads the blocks it needs.",
)
RESUME_MOVED = Code(
    "resume.moved",
    "The run resumes in another layout (strategy, number of processes or shards) than the checkpoint was"
    " saved in: what is read for it, each byte by one process, and what the fullest process holds while it"
    " loads.",
)
RESUME_REQUANTISED = Code(
    "resume.requantised",
    "The optimizer's moments have 8 or 4 bits, with a scale per block of a rank's shard, and this run's"
    " shards differ from those of the checkpoint. The moments are dequantised and quantised"
    " again: each is restored within the rounding of its block, not bit for bit.",
)
RESUME_OTHER_EVALUATION = Code(
    "resume.other_evaluation",
    "The run resumes with another evaluation set than before, or with none. Training does not"
    " change; the best value so far was measured on the former set, so it is not comparable with"
    " the next one.",
)
RESUME_BATCH_RESPLIT = Code(
    "resume.batch_resplit",
    "The run resumes with another number of processes; micro-batch and accumulation were chosen"
    " again so that a step still has the same number of rows.",
)
RESUME_CONFIG_CHANGED = Code(
    "resume.config_changed",
    "A key that affects training differs from the run that saved the checkpoint. Its current value"
    " is used; change it back if this is not intended.",
)

ROLLOUT_NO_SPREAD = Code(
    "rollout.no_spread",
    "In every group of a rollout all rewards are equal (or no answer was scored): all advantages"
    " are 0, and the step has no gradient except the KL's.",
)
ROLLOUT_SERVER_NO_KEY = Code(
    "rollout.server_no_key",
    "`training.rollout.server.api_key_env` names an environment variable that is not set on the"
    " training machine.",
)
ROLLOUT_SERVER_WEIGHTS = Code(
    "rollout.server_weights",
    "Weights for the server are written to a folder where no other user may write or rename, so"
    " that the server reads what training wrote.",
)

REWARDS_MODEL = Code(
    "rewards.model",
    "The reward `model` needs a model that returns one number per text: the folder that `paceline"
    " export` writes after `algorithm: reward`, or any AutoModelForSequenceClassification with one"
    " label (for an adapter: exported with --merge).",
)
DATA_CLASSES = Code(
    "data.classes",
    "The labels of the rows do not match the classes in training.classification: an unknown name, a"
    " number beyond num_labels, lists where a row has one class, a mix of names and numbers, or a"
    " single class. A plan checks the first rows; the rest is checked once all rows have been read.",
)
ALGORITHM_TEACHER_TOKENS = Code(
    "algorithm.teacher_tokens",
    "A teacher scores the student's own tokens. With another tokenizer, or with tokens added to the"
    " student's, token i would be a different text for it.",
)
REWARDS_TOKENIZER = Code(
    "rewards.tokenizer",
    "A reward model receives the tokens of prompt and answer; with another tokenizer it would read"
    " a different text.",
)
REWARDS_CODE_TESTS = Code(
    "rewards.code_tests",
    "Tests of the reward `code` run in a separate process, call the program's functions and see"
    " plain values. Rows whose tests need more (the program's own classes, what it prints, modules"
    " that are not installed) or use nothing of the program are listed before the first answer.",
)

PROFILE_STEP = Code(
    "profile.step",
    "A step of training.profile was recorded. The file named has the whole summary; beside it are the numbers"
    " as JSON and a trace for https://ui.perfetto.dev or chrome://tracing.",
)
PROFILE_FAILED = Code(
    "profile.failed",
    "A step of training.profile could not be summarised or written. Training goes on, and its results are the"
    " same.",
)
PROFILE_BEYOND = Code(
    "profile.beyond",
    "training.profile names steps that this run does not come to: it ends before, or was resumed after them.",
)
