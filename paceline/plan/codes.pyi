# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _ALGORITHM_NO_SPEC(CodeName):
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

class _ALGORITHM_NO_TEACHER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        model_key: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ALGORITHM_SPEC_TORCH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        module: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EMBEDDING_FOLDER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EMBEDDING_DEVICES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RETRIEVAL_REPEATED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DISTILLATION_LMBDA_OFF(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_PROCESSOR_OPTION(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        options: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_PROCESSOR_FILE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_PROCESSOR_SETTING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_STEP_TIMEOUT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        human_seconds: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_OTHER_TORCH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        package: object,
        version: object,
        wants: object,
        release: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_ROWS_CARDS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rows: object,
        cards: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_MODEL_SIZES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        family: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_TOWER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_NO_ROUTER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        why: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_FREEZE_NAME(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_FREEZE_ALL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_FREEZE_ADAPTERS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_FREEZE_PIPELINE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_FREEZE_ROUNDED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        dtype: object,
        stored: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_VISION_NO_TOWER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        family: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_VISION_FAMILY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        family: object,
        why: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_VISION_ALGORITHM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        algorithm: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_VISION_ANSWERS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_VISION_RATES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        why: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_VISION_CONTEXT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_VISION_TENSOR(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        option: object,
        why: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_VISION_ORDER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_VISION_PIPELINE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_FREEZE_RATE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        part: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_ALIBI_TWICE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_MODEL_TYPE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_MODEL_UNKNOWN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        near: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_DEEPSPEED_MISSING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        package: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_CALIBRATION_FILE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_GOAL_LENGTH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_GOAL_NOTHING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        tried: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_GOAL_SPOT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_HARDWARE_FORM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_HARDWARE_KEY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        near: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_HARDWARE_MISSING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_HARDWARE_UNKNOWN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_HARDWARE_VALUE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_TOO_FEW_DEVICES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        per_node: object,
        num_devices: object,
        label: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_WORLD_NODES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_WORLD_SIZE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_BATCH_WORLD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        global_batch: object,
        data_parallel_size: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_FASTEST_CHOOSES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_FASTEST_NOTHING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_FASTEST_UNKNOWN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        missing: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_START_CARD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        words: object,
        master: object,
        size: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_START_HOST(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        many: object,
        words: object,
        master: object,
        size: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_STATES_CARD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_STATES_HOST(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        many: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_ROWS_ROOM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        micro_batch: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_ADAPTER_FOLDER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_ADAPTER_PATTERN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_ADAPTER_STRATEGY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        adapters: object,
        needed: object,
        strategies: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_QUANTISED_FLOAT64(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_OPTIM_TARGET_MODULES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_CPU_TORCH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        install: object,
        or_cpu: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_DRIVER_OLD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        driver: object,
        built: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_HIDDEN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        variable: object,
        or_cpu: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_MEMORY_TAKEN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        taken: object,
        name: object,
        free: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_MIG_EMPTY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        or_cpu: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_PACKAGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        package: object,
        or_cpu: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_SILENT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        slow_driver: object,
        or_cpu: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_TORCH_SILENT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_UNDRIVEN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        named: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEVICE_UNUSED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        remedy: object,
        or_cpu: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_ADAPTER_BASE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_DAMAGED_WEIGHTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_MISSING_SHARDS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        missing: object,
        named: object,
        index: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_NO_WEIGHTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_SPECIAL_FILE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_NOT_A_FOLDER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_PICKLED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODEL_WEIGHTS_INDEX(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PREC_FULL_EVAL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        compute: object,
        key: object,
        dtypes: object,
        alike: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_START_CARDS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        remedy: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_START_ROOM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_GROUPS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        near: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_STEPS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        steps: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_CORRECTION(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PAR_DS_TP_MISMATCH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PAR_PP_LAYERS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        layers: object,
        stages: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PAR_PP_SIZE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        processes: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PAR_TP_HEADS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        heads: object,
        size: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PAR_TP_NODE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        size: object,
        per_node: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PAR_CP_HEADS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        heads: object,
        size: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _FSDP2_LOCAL_STATE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ZERO_HPZ(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        world_size: object,
        size: object,
        key: object,
        legal: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ZERO_NOT_SUPPORTED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        why: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ZERO_NVME_STAGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ZERO_OFFLOAD_RATIO(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ZERO_QUANTISED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_FP16(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        stage: object,
        device_name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_SPEC_TORCH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        module: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_TP_STAGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_FP16_OFFLOAD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SPEC_CHECK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        method: object,
        getattr: object,
        base: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_NO_STAGES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _KTO_ONE_ROW(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _GRPO_CISPO_BOUND(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _GRPO_CISPO_UNUSED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PPO_KL_ESTIMATOR(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PPO_ADAPTIVE_KL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DPO_REFERENCE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        unused: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DPO_LABEL_SMOOTHING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        loss_type: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SAVE_OBJECTS_PACKAGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        extra: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

ALGORITHM_NO_SPEC: _ALGORITHM_NO_SPEC
ALGORITHM_NO_TEACHER: _ALGORITHM_NO_TEACHER
ALGORITHM_VOCABULARY: Code
ALGORITHM_SPEC_TORCH: _ALGORITHM_SPEC_TORCH
CLASSIFICATION_LABELS: Code
EMBEDDING_LOSS_TYPE: Code
EMBEDDING_FOLDER: _EMBEDDING_FOLDER
EMBEDDING_DEVICES: _EMBEDDING_DEVICES
RETRIEVAL_GRADES: Code
RETRIEVAL_REPEATED: _RETRIEVAL_REPEATED
DISTILLATION_LMBDA_OFF: _DISTILLATION_LMBDA_OFF
PLAN_PROCESSOR_OPTION: _PLAN_PROCESSOR_OPTION
PLAN_PROCESSOR_FILE: _PLAN_PROCESSOR_FILE
PLAN_PROCESSOR_SETTING: _PLAN_PROCESSOR_SETTING
PLAN_STEP_TIMEOUT: _PLAN_STEP_TIMEOUT
PLAN_PACKAGE: Code
PLAN_OTHER_TORCH: _PLAN_OTHER_TORCH
PLAN_COMPILER: Code
PLAN_ROWS_CARDS: _PLAN_ROWS_CARDS
PLAN_MODEL_CONFIG: Code
PLAN_MODEL_HEADS: Code
PLAN_MODEL_MISSING: Code
PLAN_MODEL_SIZE: Code
PLAN_MODEL_SIZES: _PLAN_MODEL_SIZES
PLAN_FAMILY: Code
PLAN_ENCODER: Code
PLAN_FAMILY_STRATEGY: Code
PLAN_TOWER: _PLAN_TOWER
PLAN_ADAPTER_EXPERTS: Code
PLAN_NO_ROUTER: _PLAN_NO_ROUTER
PLAN_FREEZE_NAME: _PLAN_FREEZE_NAME
PLAN_FREEZE_ALL: _PLAN_FREEZE_ALL
PLAN_FREEZE_ADAPTERS: _PLAN_FREEZE_ADAPTERS
PLAN_FREEZE_PIPELINE: _PLAN_FREEZE_PIPELINE
PLAN_FREEZE_ROUNDED: _PLAN_FREEZE_ROUNDED
PLAN_VISION_NO_TOWER: _PLAN_VISION_NO_TOWER
PLAN_VISION_FAMILY: _PLAN_VISION_FAMILY
PLAN_VISION_ALGORITHM: _PLAN_VISION_ALGORITHM
PLAN_VISION_ANSWERS: _PLAN_VISION_ANSWERS
PLAN_VISION_RATES: _PLAN_VISION_RATES
PLAN_VISION_CONTEXT: _PLAN_VISION_CONTEXT
PLAN_VISION_TENSOR: _PLAN_VISION_TENSOR
PLAN_VISION_ORDER: _PLAN_VISION_ORDER
PLAN_VISION_PIPELINE: _PLAN_VISION_PIPELINE
PLAN_FREEZE_RATE: _PLAN_FREEZE_RATE
PLAN_BALANCE_LOSS: Code
PLAN_BALANCE_LOSS_SPLIT: Code
PLAN_QUANTISED_BASE: Code
PLAN_ALIBI_TWICE: _PLAN_ALIBI_TWICE
PLAN_MODEL_FILE: Code
PLAN_WEIGHTS_SIZES: Code
PLAN_MODEL_TYPE: _PLAN_MODEL_TYPE
PLAN_MODEL_UNKNOWN: _PLAN_MODEL_UNKNOWN
PLAN_NOT_INSTALLED: Code
PLAN_DEEPSPEED_MISSING: _PLAN_DEEPSPEED_MISSING
PLAN_CALIBRATION_FILE: _PLAN_CALIBRATION_FILE
PLAN_GOAL_LENGTH: _PLAN_GOAL_LENGTH
PLAN_GOAL_NOTHING: _PLAN_GOAL_NOTHING
PLAN_GOAL_SPOT: _PLAN_GOAL_SPOT
PLAN_HARDWARE_FILE: Code
PLAN_HARDWARE_FORM: _PLAN_HARDWARE_FORM
PLAN_HARDWARE_KEY: _PLAN_HARDWARE_KEY
PLAN_HARDWARE_MISSING: _PLAN_HARDWARE_MISSING
PLAN_HARDWARE_NODES: Code
PLAN_HARDWARE_UNKNOWN: _PLAN_HARDWARE_UNKNOWN
PLAN_HARDWARE_VALUE: _PLAN_HARDWARE_VALUE
PLAN_TOO_FEW_DEVICES: _PLAN_TOO_FEW_DEVICES
PLAN_WORLD_NODES: _PLAN_WORLD_NODES
PLAN_WORLD_SIZE: _PLAN_WORLD_SIZE
PLAN_BATCH_WORLD: _PLAN_BATCH_WORLD
PLAN_FASTEST_CHOOSES: _PLAN_FASTEST_CHOOSES
PLAN_FASTEST_NOTHING: _PLAN_FASTEST_NOTHING
PLAN_FASTEST_UNKNOWN: _PLAN_FASTEST_UNKNOWN
PLAN_START_CARD: _PLAN_START_CARD
PLAN_START_HOST: _PLAN_START_HOST
PLAN_STATES_CARD: _PLAN_STATES_CARD
PLAN_STATES_HOST: _PLAN_STATES_HOST
PLAN_ROWS_ROOM: _PLAN_ROWS_ROOM
PLAN_ADAPTER_FOLDER: _PLAN_ADAPTER_FOLDER
PLAN_ADAPTER_KIND: Code
PLAN_ADAPTER_PATTERN: _PLAN_ADAPTER_PATTERN
PLAN_ADAPTER_STRATEGY: _PLAN_ADAPTER_STRATEGY
PLAN_QUANTISED_FLOAT64: _PLAN_QUANTISED_FLOAT64
PLAN_QUANTISED_STRATEGY: Code
PLAN_OPTIM_TARGET_MODULES: _PLAN_OPTIM_TARGET_MODULES
DEVICE_ARCH: Code
DEVICE_CPU_TORCH: _DEVICE_CPU_TORCH
DEVICE_DRIVER_OLD: _DEVICE_DRIVER_OLD
DEVICE_HIDDEN: _DEVICE_HIDDEN
DEVICE_MEMORY_TAKEN: _DEVICE_MEMORY_TAKEN
DEVICE_MIG_EMPTY: _DEVICE_MIG_EMPTY
DEVICE_MIXED: Code
DEVICE_PACKAGE: _DEVICE_PACKAGE
DEVICE_SILENT: _DEVICE_SILENT
DEVICE_TORCH_SILENT: _DEVICE_TORCH_SILENT
DEVICE_UNDRIVEN: _DEVICE_UNDRIVEN
DEVICE_UNUSED: _DEVICE_UNUSED
TRACKER_NOT_INSTALLED: Code
TRACKER_OFFLINE: Code
MODEL_ADAPTER_FOLDER: Code
MODEL_ADAPTER_BASE: _MODEL_ADAPTER_BASE
MODEL_RUN_FOLDER: Code
MODEL_OTHER_HEAD: Code
MODEL_DAMAGED_WEIGHTS: _MODEL_DAMAGED_WEIGHTS
MODEL_MISSING_SHARDS: _MODEL_MISSING_SHARDS
MODEL_NO_WEIGHTS: _MODEL_NO_WEIGHTS
MODEL_SPECIAL_FILE: _MODEL_SPECIAL_FILE
MODEL_NOT_A_FOLDER: _MODEL_NOT_A_FOLDER
MODEL_PICKLED: _MODEL_PICKLED
MODEL_WEIGHTS_INDEX: _MODEL_WEIGHTS_INDEX
PREC_FP8: Code
PREC_BF16_WEIGHTS: Code
PREC_FULL_EVAL: _PREC_FULL_EVAL
ROLLOUT_START_CARDS: _ROLLOUT_START_CARDS
ROLLOUT_START_ROOM: _ROLLOUT_START_ROOM
ROLLOUT_GATHER_ROOM: Code
ROLLOUT_GROUPS: _ROLLOUT_GROUPS
ROLLOUT_STEPS: _ROLLOUT_STEPS
ROLLOUT_CORRECTION: _ROLLOUT_CORRECTION
PAR_DEEPSPEED: Code
PAR_DS_TP_MISMATCH: _PAR_DS_TP_MISMATCH
PAR_PP_LAYERS: _PAR_PP_LAYERS
PAR_PP_SIZE: _PAR_PP_SIZE
PAR_PP_STAGES: Code
PAR_SHARDING: Code
PAR_TP_WIDTH: Code
PAR_PRODUCT: Code
PAR_TP_HEADS: _PAR_TP_HEADS
PAR_TP_KV_HEADS: Code
PAR_TP_NODE: _PAR_TP_NODE
PAR_CP_HEADS: _PAR_CP_HEADS
FSDP2_LOCAL_STATE: _FSDP2_LOCAL_STATE
ZERO_HPZ: _ZERO_HPZ
ZERO_NOT_SUPPORTED: _ZERO_NOT_SUPPORTED
ZERO_NVME_STAGE: _ZERO_NVME_STAGE
ZERO_OFFLOAD: Code
ZERO_OFFLOAD_RATIO: _ZERO_OFFLOAD_RATIO
ZERO_QUANTISED: _ZERO_QUANTISED
STRATEGY_DEEPSPEED_FP16: _STRATEGY_DEEPSPEED_FP16
STRATEGY_SPEC_TORCH: _STRATEGY_SPEC_TORCH
STRATEGY_DEEPSPEED_TP_PLAN: Code
STRATEGY_DEEPSPEED_TP_STAGE: _STRATEGY_DEEPSPEED_TP_STAGE
STRATEGY_COMPILE: Code
STRATEGY_ADAFACTOR: Code
STRATEGY_OPTIMIZER_SPLIT: Code
STRATEGY_FP16_OFFLOAD: _STRATEGY_FP16_OFFLOAD
SPEC_CHECK: _SPEC_CHECK
MODELS_NO_STAGES: _MODELS_NO_STAGES
MODELS_TP_NO_PLAN: Code
MODELS_TP_STYLE: Code
BATCH_TRIPLE: Code
KTO_ONE_ROW: _KTO_ONE_ROW
GRPO_CISPO_BOUND: _GRPO_CISPO_BOUND
GRPO_CISPO_UNUSED: _GRPO_CISPO_UNUSED
PPO_KL_ESTIMATOR: _PPO_KL_ESTIMATOR
PPO_ADAPTIVE_KL: _PPO_ADAPTIVE_KL
DPO_REFERENCE: _DPO_REFERENCE
DPO_LABEL_SMOOTHING: _DPO_LABEL_SMOOTHING
SAVE_OBJECTS_PACKAGE: _SAVE_OBJECTS_PACKAGE
