# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _MODEL_MISSING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_TWO(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_ADDED_TOKENS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_TOKENIZER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_TYPE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_CONFIG_KEY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        model_type: object,
        key: object,
        near: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_CONFIG_UNREAD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        model_type: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_DTYPE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_ATTENTION_CPU(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_MAX_STEPS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_WARMUP_CONSTANT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_REPORT_TO(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        trackers: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_CALLBACK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_OPTIMIZER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        why: object,
        instead: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_OPTIMIZER_DEVICE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        devices: object,
        device: object,
        elsewhere: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_OPTIMIZER_FLOAT64(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_MAX_GRAD_NORM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        max_grad_norm: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_WEIGHT_DECAY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        fraction: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_ADAM_EPSILON(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        adam_epsilon: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_SCHEDULE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_BEST_METRIC(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        algorithm: object,
        names: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_BEST_IS_WORST(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        metric: object,
        way: object,
        better: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_REENTRANT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_RECOMPUTE_OFF(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_RECOMPUTE_COMPILED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        kept: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_COMPILE_OFF(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _TRAIN_ROUTER_SCOPE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _BATCH_POSITIVE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_EVAL_GENERATE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        in_words: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_FLOAT64(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_FP16_PIPELINE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        others: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_PIPELINE_RECOMPUTE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        schedule: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_PAIRS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        in_words: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_ROLLOUTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        who: object,
        in_words: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DATA_PARALLEL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DIVERGENCE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        in_words: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PREC_LOST_UPDATES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        largest: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PREC_FP16_BF16_EVAL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PREC_BF16_HW(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        device: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PREC_FP16_HW(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        device: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PREC_BF16_PRETRAINED_FP16(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PREC_MIN_LOSS_SCALE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ALGORITHM_OPTION_IDLE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        needs: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _BACK_FSDP_DS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _BACK_DISTRIBUTED_ALONE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _BACK_ONE_PROCESS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        world: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _BACK_FSDP_SINGLE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        least: object,
        there: object,
        start: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _BACK_NCCL_CPU(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        why: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _BACK_NOT_BUILT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        built: object,
        get: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _BACK_NODE_RANK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        last: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _BACK_MULTI_NODE_PORT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_FLOAT64(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        label: object,
        why: object,
        or_cpu: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_GLOO(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        label: object,
        backend: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_DETERMINISM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        label: object,
        or_cpu: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_QUANTISED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        label: object,
        or_cpu: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _XLA_NOT_RUN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        have: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PAR_SIZES_GE1(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PAR_TP_PURE_DP(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PAR_STRATEGY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        wrong: object,
        instead: object,
        ones: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PAR_PP_CP(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PAR_CP_ATTENTION(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_NO_REWARDS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_LENGTH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_ONE_ANSWER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_FILTER_GROUPS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_MAX_REDRAWS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_GREEDY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVER_URL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVERS_TWICE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_START_NODES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVER_KEY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVER_PUBLIC(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVER_CUT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        detail: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVER_TOWER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        composite: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REWARDS_MODEL_OPTIONS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REWARDS_TWO_MODELS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REWARDS_UNSANDBOXED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REWARDS_NO_CODE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PPO_NO_KL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        kl: object,
        reference: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DPO_LM_HEAD_ADAPTER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ZERO_STAGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _FSDP_ACT_CKPT_TWICE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SAVE_BEST_STEPS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        multiple: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SAVE_BEST_NEEDS_EVAL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SAVE_TOTAL_LIMIT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SAVE_UPLOAD_TIMEOUT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SAVE_DISK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        need: object,
        disk_free_bytes: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUN_REMOTE_FOLDER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUN_NAME_LEAVES_OUTPUTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EVAL_DATASET(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EVAL_EARLY_STOPPING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RESUME_OVERWRITE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_PREFETCH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_MAX_POS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        length: object,
        limit: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_TRAIN_ON_IDLE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        words: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_PACKING_EVAL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        algorithm: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_VALIDATION_SPLIT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_ONE_WEIGHT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_RETRIEVAL_PROMPT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PEFT_BITS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PEFT_PATTERN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PEFT_QUANT_BIAS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PEFT_RESIZE_QUANT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _HOST_MEMLOCK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _HOST_NOFILE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        world: object,
        need: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _HOST_IFNAME(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        there: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _HOST_SLURM_TASKS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _HOST_SLURM_IDLE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        command: object,
        instead: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

MODEL_OFFLINE: Code
MODEL_MISSING: _MODEL_MISSING
MODEL_TWO: _MODEL_TWO
MODEL_ADDED_TOKENS: _MODEL_ADDED_TOKENS
MODEL_TOKENIZER: _MODEL_TOKENIZER
MODEL_TYPE: _MODEL_TYPE
MODEL_CONFIG_KEY: _MODEL_CONFIG_KEY
MODEL_CONFIG_UNREAD: _MODEL_CONFIG_UNREAD
MODEL_DTYPE: _MODEL_DTYPE
MODEL_ATTENTION_CPU: _MODEL_ATTENTION_CPU
HUB_UNREACHABLE: Code
TRAIN_ON_SPIKE: Code
TRAIN_MAX_STEPS: _TRAIN_MAX_STEPS
TRAIN_WARMUP: Code
TRAIN_WARMUP_CONSTANT: _TRAIN_WARMUP_CONSTANT
TRAIN_LOGGING_STEPS: Code
TRAIN_PROFILE: Code
TRAIN_REPORT_TO: _TRAIN_REPORT_TO
TRAIN_CALLBACK: _TRAIN_CALLBACK
TRAIN_OPTIMIZER: _TRAIN_OPTIMIZER
TRAIN_OPTIMIZER_DEVICE: _TRAIN_OPTIMIZER_DEVICE
TRAIN_OPTIMIZER_FLOAT64: _TRAIN_OPTIMIZER_FLOAT64
TRAIN_SCHEDULE_FREE: Code
TRAIN_OPTIM_TARGET_MODULES: Code
TRAIN_LEARNING_RATE: Code
TRAIN_MAX_GRAD_NORM: _TRAIN_MAX_GRAD_NORM
TRAIN_WEIGHT_DECAY: _TRAIN_WEIGHT_DECAY
TRAIN_ADAM_EPSILON: _TRAIN_ADAM_EPSILON
TRAIN_SCHEDULE: _TRAIN_SCHEDULE
TRAIN_SCHEDULE_OPTIONS: Code
TRAIN_BEST_METRIC: _TRAIN_BEST_METRIC
TRAIN_BEST_IS_WORST: _TRAIN_BEST_IS_WORST
TRAIN_EVAL_GENERATE: Code
TRAIN_EVAL_METRICS: Code
TRAIN_REENTRANT: _TRAIN_REENTRANT
TRAIN_RECOMPUTE_OFF: _TRAIN_RECOMPUTE_OFF
TRAIN_RECOMPUTE_COMPILED: _TRAIN_RECOMPUTE_COMPILED
TRAIN_COMPILE_OFF: _TRAIN_COMPILE_OFF
TRAIN_ROUTER_SCOPE: _TRAIN_ROUTER_SCOPE
TRAIN_ALGORITHM_SECTION: Code
BATCH_POSITIVE: _BATCH_POSITIVE
STRATEGY_EVAL_GENERATE: _STRATEGY_EVAL_GENERATE
STRATEGY_OPTIONS: Code
STRATEGY_FLOAT64: _STRATEGY_FLOAT64
STRATEGY_FP16_PIPELINE: _STRATEGY_FP16_PIPELINE
STRATEGY_PIPELINE_RECOMPUTE: _STRATEGY_PIPELINE_RECOMPUTE
STRATEGY_PAIRS: _STRATEGY_PAIRS
STRATEGY_ROLLOUTS: _STRATEGY_ROLLOUTS
STRATEGY_DATA_PARALLEL: _STRATEGY_DATA_PARALLEL
STRATEGY_DIVERGENCE: _STRATEGY_DIVERGENCE
PREC_LOST_UPDATES: _PREC_LOST_UPDATES
PREC_FP16_BF16_EVAL: _PREC_FP16_BF16_EVAL
PREC_BF16_HW: _PREC_BF16_HW
PREC_FP16_HW: _PREC_FP16_HW
PREC_BF16_PRETRAINED_FP16: _PREC_BF16_PRETRAINED_FP16
PREC_MIN_LOSS_SCALE: _PREC_MIN_LOSS_SCALE
ALGORITHM_OPTION_IDLE: _ALGORITHM_OPTION_IDLE
ALGORITHM_OPTIONS: Code
BACK_FSDP_DS: _BACK_FSDP_DS
BACK_STRATEGY_VS_FILE: Code
BACK_DISTRIBUTED_FLAG: Code
BACK_DISTRIBUTED_ALONE: _BACK_DISTRIBUTED_ALONE
BACK_ONE_PROCESS: _BACK_ONE_PROCESS
BACK_FSDP_SINGLE: _BACK_FSDP_SINGLE
BACK_NCCL_CPU: _BACK_NCCL_CPU
BACK_NOT_BUILT: _BACK_NOT_BUILT
BACK_NODE_RANK: _BACK_NODE_RANK
BACK_MULTI_NODE_PORT: _BACK_MULTI_NODE_PORT
DEVICE_FLOAT64: _DEVICE_FLOAT64
DEVICE_ALONE: Code
DEVICE_GLOO: _DEVICE_GLOO
DEVICE_DETERMINISM: _DEVICE_DETERMINISM
DEVICE_QUANTISED: _DEVICE_QUANTISED
XLA_NOT_RUN: _XLA_NOT_RUN
PAR_SIZES_GE1: _PAR_SIZES_GE1
PAR_TP_PURE_DP: _PAR_TP_PURE_DP
PAR_STRATEGY: _PAR_STRATEGY
PAR_PP_CP: _PAR_PP_CP
PAR_CP_ATTENTION: _PAR_CP_ATTENTION
ROLLOUT_NO_REWARDS: _ROLLOUT_NO_REWARDS
ROLLOUT_LENGTH: _ROLLOUT_LENGTH
ROLLOUT_ONE_ANSWER: _ROLLOUT_ONE_ANSWER
ROLLOUT_FILTER_GROUPS: _ROLLOUT_FILTER_GROUPS
ROLLOUT_MAX_REDRAWS: _ROLLOUT_MAX_REDRAWS
ROLLOUT_GREEDY: _ROLLOUT_GREEDY
ROLLOUT_SERVER_URL: _ROLLOUT_SERVER_URL
ROLLOUT_SERVERS_TWICE: _ROLLOUT_SERVERS_TWICE
ROLLOUT_START_NODES: _ROLLOUT_START_NODES
ROLLOUT_SERVER_KEY: _ROLLOUT_SERVER_KEY
ROLLOUT_SERVER_PUBLIC: _ROLLOUT_SERVER_PUBLIC
ROLLOUT_SERVER_CUT: _ROLLOUT_SERVER_CUT
ROLLOUT_SERVER_TOWER: _ROLLOUT_SERVER_TOWER
REWARDS_MODEL_OPTIONS: _REWARDS_MODEL_OPTIONS
REWARDS_TWO_MODELS: _REWARDS_TWO_MODELS
REWARDS_CODE_OFF: Code
REWARDS_NO_ISOLATION: Code
REWARDS_UNSANDBOXED: _REWARDS_UNSANDBOXED
REWARDS_NO_CODE: _REWARDS_NO_CODE
PPO_NO_KL: _PPO_NO_KL
DPO_LM_HEAD_ADAPTER: _DPO_LM_HEAD_ADAPTER
ZERO_STAGE: _ZERO_STAGE
FSDP_ACT_CKPT_TWICE: _FSDP_ACT_CKPT_TWICE
SAVE_BEST_STRATEGY: Code
SAVE_BEST_STEPS: _SAVE_BEST_STEPS
SAVE_BEST_NEEDS_EVAL: _SAVE_BEST_NEEDS_EVAL
SAVE_STEPS_FRACTION: Code
SAVE_TOTAL_LIMIT: _SAVE_TOTAL_LIMIT
SAVE_KEEP_EVERY: Code
SAVE_UPLOAD_TIMEOUT: _SAVE_UPLOAD_TIMEOUT
SAVE_DISK: _SAVE_DISK
SAVE_CHECKPOINT_URL: Code
RUN_REMOTE_FOLDER: _RUN_REMOTE_FOLDER
RUN_NAME_LEAVES_OUTPUTS: _RUN_NAME_LEAVES_OUTPUTS
EVAL_DATASET: _EVAL_DATASET
EVAL_EARLY_STOPPING: _EVAL_EARLY_STOPPING
EVAL_STEPS: Code
RESUME_NO_CHECKPOINT: Code
RESUME_ONLY_INCOMPLETE: Code
RESUME_OVERWRITE: _RESUME_OVERWRITE
DATA_MISSING: Code
DATA_PREFETCH: _DATA_PREFETCH
DATA_MAX_POS: _DATA_MAX_POS
DATA_TRAIN_ON_IDLE: _DATA_TRAIN_ON_IDLE
DATA_PACKING_EVAL: _DATA_PACKING_EVAL
DATA_VALIDATION_SPLIT: _DATA_VALIDATION_SPLIT
DATA_TWO_EVALS: Code
DATA_ONE_WEIGHT: _DATA_ONE_WEIGHT
DATA_RETRIEVAL_PROMPT: _DATA_RETRIEVAL_PROMPT
PEFT_BITS: _PEFT_BITS
PEFT_PATTERN: _PEFT_PATTERN
PEFT_QUANT_BIAS: _PEFT_QUANT_BIAS
PEFT_RESIZE_QUANT: _PEFT_RESIZE_QUANT
SEC_ATTENTION_KERNEL: Code
HOST_MEMLOCK: _HOST_MEMLOCK
HOST_NOFILE: _HOST_NOFILE
HOST_IFNAME: _HOST_IFNAME
HOST_SLURM_TASKS: _HOST_SLURM_TASKS
HOST_SLURM_IDLE: _HOST_SLURM_IDLE
