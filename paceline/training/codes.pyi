# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _TRACKER_NOT_ONE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CALLBACK_STOPS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_ATTENTION(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_COMPILE_BACKEND(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        backends: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_COMPILE_MODE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        modes: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRIAL_FAILED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRIAL_NOT_HERE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        detail: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_OTHER_PROCESSES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        path: object,
        requested: object,
        count: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_RESTARTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        requested: object,
        key: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _WORLD_PEER_LOST(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        gone: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_PIPELINE_GENERATION(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        strategy: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_SYSTEM_REFUSED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        named: object,
        reason: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_EXCEPTION(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        kind: object,
        text: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_OUT_OF_MEMORY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_NONFINITE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        step: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_STRAGGLER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        percent: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_SPIKES_STAY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        saved: object,
        count: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_NO_PROMPTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        own_answers: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_EVAL_GENERATE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_NO_STEPS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_ROWS_DIFFER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_WEIGHTS_DIFFER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_PLAN_RANKS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_PLAN_FILE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_LR_SCHEDULER_TYPE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        why: object,
        names: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_LR_SCHEDULER_KWARGS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_METRIC_FOR_BEST_MODEL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        names: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_BEST_CHECKPOINT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_EVAL_ROWS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_NO_CHECKPOINT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAINING_NO_RUN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RESUME_OTHER_ALGORITHM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        before: object,
        algorithm: object,
        export: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RESUME_OTHER_ROLLOUT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        words: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RESUME_OTHER_OPTIMIZER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        named: object,
        export: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RESUME_BASE_MODEL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RESUME_CONVERTED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        state: object,
        goes_on: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RESUME_DATA_NOT_COMPARED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RESUME_REQUANTISED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RESUME_CONFIG_CHANGED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        section: object,
        key: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SAMPLING_GAP(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        remedy: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVER_NO_KEY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVER_UNFIT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        why: object,
        remedy: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_WEIGHTS_WAY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        way: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVER_WEIGHTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REWARDS_TEMPLATE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        template: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_EMPTY_CLASSES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        largest: object,
        count: object,
        read: object,
        given: object,
        line: object,
        number: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ALGORITHM_TEACHER_TOKENS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        role: object,
        added: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ALGORITHM_TEACHER_TEMPLATE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        template: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PROFILE_FAILED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        step: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PROFILE_BEYOND(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        of_run: object,
        others: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

TRACKER_FAILED: Code
TRACKER_NOT_ONE: _TRACKER_NOT_ONE
TRACKER_SLOW: Code
TRACKER_DROPPED: Code
TRACKER_UNSENT: Code
CALLBACK_FAILED: Code
CALLBACK_SLOW: Code
CALLBACK_STOPS: _CALLBACK_STOPS
CALLBACK_NOT_ONE: Code
MODEL_ATTENTION: _MODEL_ATTENTION
TRAIN_COMPILE_BACKEND: _TRAIN_COMPILE_BACKEND
TRAIN_COMPILE_MODE: _TRAIN_COMPILE_MODE
TRIAL_FAILED: _TRIAL_FAILED
TRIAL_NOT_HERE: _TRIAL_NOT_HERE
LAUNCH_OTHER_PROCESSES: _LAUNCH_OTHER_PROCESSES
LAUNCH_RESTARTS: _LAUNCH_RESTARTS
RUN_RESULT_LOST: Code
WORLD_MISMATCH: Code
WORLD_PEER_LOST: _WORLD_PEER_LOST
STRATEGY_PIPELINE_GENERATION: _STRATEGY_PIPELINE_GENERATION
TRAINING_SYSTEM_REFUSED: _TRAINING_SYSTEM_REFUSED
TRAINING_EXCEPTION: _TRAINING_EXCEPTION
TRAINING_OUT_OF_MEMORY: _TRAINING_OUT_OF_MEMORY
TRAINING_NONFINITE: _TRAINING_NONFINITE
TRAINING_SPIKE: Code
TRAINING_STRAGGLER: _TRAINING_STRAGGLER
TRAINING_SPIKES_STAY: _TRAINING_SPIKES_STAY
TRAINING_OVERFLOW: Code
TRAINING_NO_GRADIENT: Code
TRAINING_DIVERGED: Code
TRAINING_NO_LABELS: Code
TRAINING_NO_PROMPTS: _TRAINING_NO_PROMPTS
TRAINING_EVAL_GENERATE: _TRAINING_EVAL_GENERATE
TRAINING_NO_STEPS: _TRAINING_NO_STEPS
TRAINING_ROWS_DIFFER: _TRAINING_ROWS_DIFFER
TRAINING_WEIGHTS_DIFFER: _TRAINING_WEIGHTS_DIFFER
TRAINING_PLAN_RANKS: _TRAINING_PLAN_RANKS
TRAINING_PLAN_FILE: _TRAINING_PLAN_FILE
TRAINING_LR_SCHEDULER_TYPE: _TRAINING_LR_SCHEDULER_TYPE
TRAINING_LR_SCHEDULER_KWARGS: _TRAINING_LR_SCHEDULER_KWARGS
TRAINING_METRIC_FOR_BEST_MODEL: _TRAINING_METRIC_FOR_BEST_MODEL
TRAINING_BEST_CHECKPOINT: _TRAINING_BEST_CHECKPOINT
TRAINING_NOTHING_LEFT: Code
TRAINING_EVAL_ROWS: _TRAINING_EVAL_ROWS
TRAINING_NO_CHECKPOINT: _TRAINING_NO_CHECKPOINT
TRAINING_NO_RUN: _TRAINING_NO_RUN
TRAINING_QUESTIONS: Code
CHECKPOINT_OTHER_STRATEGY: Code
RESUME_ADAPTER: Code
RESUME_OTHER_ALGORITHM: _RESUME_OTHER_ALGORITHM
RESUME_OTHER_ROLLOUT: _RESUME_OTHER_ROLLOUT
RESUME_OTHER_MODEL: Code
RESUME_OTHER_OPTIMIZER: _RESUME_OTHER_OPTIMIZER
RESUME_BASE_MODEL: _RESUME_BASE_MODEL
RESUME_CONVERTED: _RESUME_CONVERTED
RESUME_DATA_NOT_COMPARED: _RESUME_DATA_NOT_COMPARED
RESUME_OTHER_STRATEGY: Code
RESUME_MOVED: Code
RESUME_REQUANTISED: _RESUME_REQUANTISED
RESUME_OTHER_EVALUATION: Code
RESUME_BATCH_RESPLIT: Code
RESUME_CONFIG_CHANGED: _RESUME_CONFIG_CHANGED
ROLLOUT_NO_SPREAD: Code
ROLLOUT_SAMPLING_GAP: _ROLLOUT_SAMPLING_GAP
ROLLOUT_SERVER_NO_KEY: _ROLLOUT_SERVER_NO_KEY
ROLLOUT_SERVER_UNFIT: _ROLLOUT_SERVER_UNFIT
ROLLOUT_WEIGHTS_WAY: _ROLLOUT_WEIGHTS_WAY
ROLLOUT_SERVER_WEIGHTS: _ROLLOUT_SERVER_WEIGHTS
REWARDS_MODEL: Code
REWARDS_TOKENIZER: Code
REWARDS_TEMPLATE: _REWARDS_TEMPLATE
DATA_CLASSES: Code
DATA_EMPTY_CLASSES: _DATA_EMPTY_CLASSES
ALGORITHM_TEACHER_TOKENS: _ALGORITHM_TEACHER_TOKENS
ALGORITHM_TEACHER_TEMPLATE: _ALGORITHM_TEACHER_TEMPLATE
PROFILE_STEP: Code
PROFILE_FAILED: _PROFILE_FAILED
PROFILE_BEYOND: _PROFILE_BEYOND
