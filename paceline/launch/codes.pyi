# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _PROGRAM_SYSTEM_REFUSED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        reason: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_CACHE_WRITE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_OP_LOCK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        lock: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_COUNT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_ENV_PASSED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        meaning: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_HOSTFILE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        lines: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_NODE_RANK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        num_nodes: object,
        last: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_PORT_IN_USE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        port: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_RANK_ALONE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_RENDEZVOUS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_START(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        strerror: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_TORCH_DEBUG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_NOT_INSTALLED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        source: object,
        own: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_ONE_NODE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        instead: object,
        own: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_UNKNOWN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        requested: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_RANK_FAILED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        code: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_RANK_LEFT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        code: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_STOPPED_EARLY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        exit_code: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_OUTPUT_LOST(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_RANK_GONE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_RESTART(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        number: object,
        limit: object,
        start: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_FEWER_NODES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        count: object,
        most: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_NODE_LEFT_OUT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        node: object,
        failures: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_TOO_FEW_NODES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        least: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_FIRST_NODE_GONE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_NODES_PORT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_NODES_RANGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        most: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_SAME_ERROR(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        step: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_RESTARTS_USED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        count: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_RECORD_DAMAGED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_RECORD_OWNER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_TORCHRUN_VARIABLES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        problem: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_TORCHRUN_WORLD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        nodes: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUN_EXISTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUN_IN_USE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUN_SET_ASIDE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUN_OPEN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_START_FAILED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        why: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_START_LAUNCHER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_START_MODEL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_START_PORT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_START_PYTHON(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_CALIBRATION_OFF(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_CALIBRATION_RUN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

PROGRAM_SYSTEM_REFUSED: _PROGRAM_SYSTEM_REFUSED
DATA_OFFLINE: Code
DATA_CACHE_WRITE: _DATA_CACHE_WRITE
MODEL_REVISION_UNREAD: Code
TRIAL_UNFINISHED: Code
LAUNCH_OP_LOCK: _LAUNCH_OP_LOCK
LAUNCH_COUNT: _LAUNCH_COUNT
LAUNCH_DEEPSPEED_LOG_LEVEL: Code
LAUNCH_DEEPSPEED_TIMEOUT: Code
LAUNCH_ENV_PASSED: _LAUNCH_ENV_PASSED
LAUNCH_HOSTFILE: _LAUNCH_HOSTFILE
LAUNCH_LOOPBACK: Code
LAUNCH_MASTER_ADDR: Code
LAUNCH_NCCL_TIMEOUT: Code
LAUNCH_NODE_RANK: _LAUNCH_NODE_RANK
LAUNCH_ONE_PROCESS: Code
LAUNCH_PORT_IN_USE: _LAUNCH_PORT_IN_USE
LAUNCH_RANK_ALONE: _LAUNCH_RANK_ALONE
LAUNCH_RENDEZVOUS: _LAUNCH_RENDEZVOUS
LAUNCH_START: _LAUNCH_START
LAUNCH_STORE_SECRET: Code
LAUNCH_STORE_UNSIGNED: Code
LAUNCH_TORCH_DEBUG: _LAUNCH_TORCH_DEBUG
LAUNCH_NOT_INSTALLED: _LAUNCH_NOT_INSTALLED
LAUNCH_ONE_NODE: _LAUNCH_ONE_NODE
LAUNCH_UNKNOWN: _LAUNCH_UNKNOWN
LAUNCH_WORKER_KILLED: Code
LAUNCH_OUT_OF_MEMORY: Code
LAUNCH_RANK_FAILED: _LAUNCH_RANK_FAILED
LAUNCH_RANK_LEFT: _LAUNCH_RANK_LEFT
LAUNCH_STOPPED_EARLY: _LAUNCH_STOPPED_EARLY
LAUNCH_OUTPUT_LOST: _LAUNCH_OUTPUT_LOST
LAUNCH_RANK_GONE: _LAUNCH_RANK_GONE
LAUNCH_RESTART: _LAUNCH_RESTART
LAUNCH_FEWER_NODES: _LAUNCH_FEWER_NODES
LAUNCH_NODE_LEFT_OUT: _LAUNCH_NODE_LEFT_OUT
LAUNCH_TOO_FEW_NODES: _LAUNCH_TOO_FEW_NODES
LAUNCH_FIRST_NODE_GONE: _LAUNCH_FIRST_NODE_GONE
LAUNCH_NODES_PORT: _LAUNCH_NODES_PORT
LAUNCH_NODES_RANGE: _LAUNCH_NODES_RANGE
LAUNCH_SAME_ERROR: _LAUNCH_SAME_ERROR
LAUNCH_RESTARTS_USED: _LAUNCH_RESTARTS_USED
LAUNCH_EXITS_LOST: Code
LAUNCH_RECORD_DAMAGED: _LAUNCH_RECORD_DAMAGED
LAUNCH_RECORD_OWNER: _LAUNCH_RECORD_OWNER
LAUNCH_TORCHRUN_VARIABLES: _LAUNCH_TORCHRUN_VARIABLES
LAUNCH_TORCHRUN_WORLD: _LAUNCH_TORCHRUN_WORLD
RUN_EXISTS: _RUN_EXISTS
RUN_IN_USE: _RUN_IN_USE
RUN_NOT_A_DIRECTORY: Code
RUN_NOT_WRITABLE: Code
RUN_SET_ASIDE: _RUN_SET_ASIDE
RUN_OPEN: _RUN_OPEN
ROLLOUT_START_FAILED: _ROLLOUT_START_FAILED
ROLLOUT_START_LAUNCHER: _ROLLOUT_START_LAUNCHER
ROLLOUT_START_MODEL: _ROLLOUT_START_MODEL
ROLLOUT_START_PORT: _ROLLOUT_START_PORT
ROLLOUT_START_PYTHON: _ROLLOUT_START_PYTHON
PLAN_CALIBRATION_OFF: _PLAN_CALIBRATION_OFF
PLAN_CALIBRATION_RUN: _PLAN_CALIBRATION_RUN
