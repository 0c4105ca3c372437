"""Diagnostic codes of the training loop, its metrics and its trackers."""

from __future__ import annotations

from paceline.core.diagnostics import Code

TRACKER_FAILED = Code(
    "tracker.failed",
    "A tracker (TensorBoard, Weights & Biases) raised an error. The run goes on without it; look at the"
    " tracker's own logs.",
)
TRACKER_UNKNOWN = Code(
    "tracker.unknown",
    "training.report_to names a tracker that is not known; nothing is sent to it. The known names are"
    " listed.",
)

MODEL_ATTENTION = Code(
    "model.attention",
    "Transformers has no attention of this name for the model's class, or its package is not installed."
    " attn_implementation: auto always works.",
)

TRAIN_COMPILE_BACKEND = Code(
    "train.compile_backend",
    "torch.compile has no backend of this name here. Leave torch_compile_backend out for torch's own,"
    " inductor.",
)
TRAIN_COMPILE_MODE = Code(
    "train.compile_mode", "torch.compile has no such mode. Leave torch_compile_mode out for the default."
)

TRIAL_FAILED = Code(
    "trial.failed",
    "What only an import can tell was tried in a process of its own, and the library refused in its own"
    " words. The processes of the run would meet the same.",
)
TRIAL_NOT_HERE = Code(
    "trial.not_here",
    "The model's config.json is not on this machine, so its class could not be asked before the start.",
)

LAUNCH_OTHER_PROCESSES = Code(
    "launch.other_processes",
    "The YAML's launch section asks for another number of processes or nodes than the launcher has started."
    " What was started runs; correct the line or remove it.",
)
LAUNCH_RESTARTS = Code(
    "launch.restarts",
    "torchrun runs the same command again after a failure, and without training.resume_from_checkpoint: auto"
    " it does not go on from the run's last checkpoint. Set it to auto.",
)

RUN_RESULT_LOST = Code(
    "run.result_lost",
    "Training was over and result.json could not be written, most often because the disk was full. The run"
    " answers 1, so that nobody takes it for a finished one; a checkpoint that was published before is"
    " whole.",
)

WORLD_MISMATCH = Code(
    "world.mismatch",
    "A rank was started with something else than rank 0: another config, other data, code or environment."
    " Start all ranks with the same.",
)
WORLD_PEER_LOST = Code(
    "world.peer_lost",
    "A rank lost the connection to another one that left no error behind. Look at that rank's log; a process"
    " that was killed (kill -9, want of memory) leaves none.",
)

STRATEGY_PIPELINE_GENERATION = Code(
    "strategy.pipeline_generation",
    "A pipeline cannot write answers while it trains. Export a checkpoint and ask that, or train with fsdp.",
)

TRAINING_SYSTEM_REFUSED = Code(
    "training.system_refused",
    "The operating system refused something that the run cannot do without: the disk is full or out of"
    " inodes, over its quota, read-only, or there is no permission. The file is named; what was published"
    " before is untouched.",
)
TRAINING_EXCEPTION = Code(
    "training.exception",
    "A rank raised an exception that has no name of its own: from a library, from code of yours, or from a"
    " defect. The traceback is in that rank's log.",
)
TRAINING_OUT_OF_MEMORY = Code(
    "training.out_of_memory",
    "A rank ran out of memory. The message names what would fit on this machine by the planner's search (the"
    " next strategy, offload, a smaller micro-batch with more accumulation); `paceline plan` shows what takes"
    " the room.",
)
TRAINING_NONFINITE = Code(
    "training.nonfinite",
    "The loss or the gradient is not a number any more, and going on would train nothing. Lower the rate,"
    " lengthen the warm-up, use bf16 instead of fp16, and resume from the last checkpoint.",
)
TRAINING_OVERFLOW = Code(
    "training.overflow",
    "fp16 gradients overflowed: the update was left out and the loss scale lowered. A few at the start are"
    " usual; many mean that bf16 is needed.",
)
TRAINING_NO_GRADIENT = Code(
    "training.no_gradient",
    "Steps had a loss and a gradient of exactly 0, so nothing was learnt in them: nothing that is trained"
    " takes part, or the weights have run so far away that the softmax is flat. Lower the rate, and go on"
    " from a checkpoint before it.",
)
TRAINING_DIVERGED = Code(
    "training.diverged",
    "The loss of the last steps lies far above where the run began. Lower the rate or lengthen the warm-up,"
    " and go on from a checkpoint before it.",
)
TRAINING_NO_LABELS = Code(
    "training.no_labels",
    "A step had no token to learn on any rank, so no update was made. Check data.train_on and"
    " data.max_length; where answers are generated, the reward: answers that no reward judged, and with"
    " filter_groups those of prompts whose answers all score the same, are left out.",
)
TRAINING_NO_PROMPTS = Code(
    "training.no_prompts",
    "On-policy distillation has the student answer the prompts of rows: what stands before their last learnt"
    " tokens. No row has any, because they are plain texts or all their tokens are learnt. Give conversations"
    " or instructions and data.train_on: assistant, or set lmbda: 0.",
)
TRAINING_NO_STEPS = Code(
    "training.no_steps",
    "The data cannot fill one step. Set dataloader_drop_last: false, take a smaller batch, or start fewer"
    " processes.",
)
TRAINING_ROWS_DIFFER = Code(
    "training.rows_differ",
    "Ranks that share one copy of the model were given different rows. With a strategy of your own,"
    " data_parallel_rank has to be equal within a tp, cp or pp group; otherwise this is a defect to report.",
)
TRAINING_WEIGHTS_DIFFER = Code(
    "training.weights_differ",
    "Ranks that hold copies of the same weights hold different numbers. A strategy of your own has to average"
    " every gradient once, in the same order on all ranks; otherwise this is a defect to report.",
)
TRAINING_PLAN_RANKS = Code(
    "training.plan_ranks",
    "A launcher has started more or fewer ranks than the plan given to them is for. Start as many as planned,"
    " or start from the YAML.",
)
TRAINING_PLAN_FILE = Code(
    "training.plan_file",
    "The plan that the parent process writes for its ranks cannot be read. Start with `paceline train"
    " config.yaml`.",
)
TRAINING_LR_SCHEDULER_TYPE = Code(
    "training.lr_scheduler_type",
    "The schedule is not available here, for the reason that is shown. The available ones are listed.",
)
TRAINING_LR_SCHEDULER_KWARGS = Code(
    "training.lr_scheduler_kwargs",
    "training.lr_scheduler_kwargs holds an argument that the schedule does not take. The library's message"
    " names it.",
)
TRAINING_METRIC_FOR_BEST_MODEL = Code(
    "training.metric_for_best_model",
    "training.metric_for_best_model names a metric that this algorithm does not measure. Those it measures"
    " are listed.",
)
TRAINING_BEST_CHECKPOINT = Code(
    "training.best_checkpoint",
    "The best checkpoint was to be loaded at the end, and it is gone. Keep more by"
    " training.save_total_limit.",
)
TRAINING_EVAL_ROWS = Code(
    "training.eval_rows",
    "The evaluation did not see every row exactly once, so its loss is not the mean it should be. That is a"
    " defect of Paceline: please report it.",
)
TRAINING_NO_CHECKPOINT = Code(
    "training.no_checkpoint",
    "The run has no complete checkpoint to ask. Train with training.save_strategy: steps.",
)
TRAINING_NO_RUN = Code("training.no_run", "The directory given holds no run. Name a run directory.")
TRAINING_QUESTIONS = Code(
    "training.questions", "The file of questions is missing, empty or not JSON lines with a prompt."
)

CHECKPOINT_OTHER_STRATEGY = Code(
    "checkpoint.other_strategy",
    "The run's strategy cannot read the checkpoint of the one that saved it: a class of your own keeps its"
    " state in a form of its own, and fp16's loss scale is one thing to torch and another to DeepSpeed."
    " Resume under the strategy that saved it, or export the model and start a new run from it.",
)

RESUME_ADAPTER = Code(
    "resume.adapter",
    "The checkpoint and the config do not agree about an adapter: one has none, or rank, scale or layers"
    " differ. Resume with the lora section it was made with, or start a new run.",
)
RESUME_OTHER_ALGORITHM = Code(
    "resume.other_algorithm",
    "The checkpoint is of a run that trained by another algorithm, whose rows, heads and models are others."
    " Resume by the algorithm that saved it, or export the model and start a new run from it.",
)
RESUME_OTHER_MODEL = Code(
    "resume.other_model",
    "The checkpoint is of a model with other sizes than the config's, so that its weights do not fit, or only"
    " a part of them would be taken. Use the model it was made with, or start a new run.",
)
RESUME_OTHER_OPTIMIZER = Code(
    "resume.other_optimizer",
    "The checkpoint holds the state of another optimizer, or of the same one with options under which it"
    " keeps other things. Resume with the optimizer that saved it, or export the model and start a new run,"
    " whose optimizer begins anew.",
)
RESUME_BASE_MODEL = Code(
    "resume.base_model",
    "The adapter in the checkpoint was trained on other base weights than those here. Use the model and"
    " revision it was made with.",
)
RESUME_DATA_NOT_COMPARED = Code(
    "resume.data_not_compared",
    "The checkpoint's fingerprint of its data was made by another version of Paceline, Transformers or"
    " tokenizers, by another definition, so it cannot be told whether the data is the same. The run goes on;"
    " make sure that data, tokenizer and template are what they were.",
)
RESUME_OTHER_STRATEGY = Code(
    "resume.other_strategy",
    "The run goes on under another strategy than the one that saved the checkpoint. Checkpoints hold whole"
    " tensors in blocks, of which each process reads its own.",
)
RESUME_OTHER_EVALUATION = Code(
    "resume.other_evaluation",
    "The run goes on with another evaluation set than before, or with none. What is trained stays as it was;"
    " the best value so far was measured on the former set, so it does not compare with the next one.",
)
RESUME_BATCH_RESPLIT = Code(
    "resume.batch_resplit",
    "The run goes on with another number of processes; micro-batch and accumulation were chosen anew so that"
    " a step still takes as many rows as before.",
)
RESUME_CONFIG_CHANGED = Code(
    "resume.config_changed",
    "A key that shapes training differs from the run that saved the checkpoint. It is used as it stands now;"
    " change it back if that was not meant.",
)

ROLLOUT_NO_SPREAD = Code(
    "rollout.no_spread",
    "In every group of a rollout all rewards are equal (or none was judged): all advantages are 0 and the"
    " step learns nothing but the KL.",
)
ROLLOUT_SERVER_NO_KEY = Code(
    "rollout.server_no_key",
    "`training.rollout.server.api_key_env` names an environment variable that is not set where training"
    " runs.",
)
ROLLOUT_SERVER_WEIGHTS = Code(
    "rollout.server_weights",
    "Weights for the server are written into a folder where nobody else may write or rename, so that the"
    " server reads what training wrote.",
)

REWARDS_MODEL = Code(
    "rewards.model",
    "The reward `model` needs a model that gives one number a text: the folder that `paceline export` writes"
    " after `algorithm: reward`, or any AutoModelForSequenceClassification with one label (of an adapter:"
    " exported with --merge).",
)
DATA_CLASSES = Code(
    "data.classes",
    "The labels of the rows are not classes that training.classification describes: a name that is not among"
    " its labels, a number beyond num_labels, lists where a row has one class, names and numbers mixed, or"
    " one class alone. A plan looks at the first rows; the rest is known once all rows have been read.",
)
ALGORITHM_TEACHER_TOKENS = Code(
    "algorithm.teacher_tokens",
    "A teacher is asked about the student's own tokens. With another tokenizer, or with tokens added to the"
    " student's, token i would be another text to it.",
)
REWARDS_TOKENIZER = Code(
    "rewards.tokenizer",
    "A reward model is shown the tokens of prompt and answer; with another tokenizer it would read another"
    " text.",
)
REWARDS_CODE_TESTS = Code(
    "rewards.code_tests",
    "Tests of the reward `code` run in a process of their own, call the program's functions and see plain"
    " values. Rows whose tests need more (the program's own classes, what it prints, modules that are not"
    " installed) or use nothing of the program are named before the first answer.",
)
