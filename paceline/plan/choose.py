"""``make_plan``: config and hardware in, plan out. Pure: the same input gives the same plan, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from paceline import __version__
from paceline.core.diagnostics import Diagnostic, errors
from paceline.core.errors import ConfigError
from paceline.plan.batch import BatchSplit, split_batch
from paceline.plan.hardware import Hardware
from paceline.plan.knobs import choose_attention, choose_backend, knob_decisions, optimizer_spec
from paceline.plan.mesh import Mesh, mesh_for
from paceline.plan.plan import Decision, Plan, Precision
from paceline.plan.precision import choose_precision
from paceline.plan.shape import ModelShape, shape_from_config
from paceline.plan.strategy import SHARDED, check_algorithm, choose_strategy

if TYPE_CHECKING:
    from paceline.config.schema import Config

T = TypeVar("T")


class _Findings:
    """Runs each choice, keeps what it raised, so that all findings are printed at once."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []

    def attempt(self, choice: Callable[[], T]) -> T | None:
        try:
            return choice()
        except ConfigError as exc:
            self.found.extend(exc.diagnostics)
            return None

    def stop(self) -> None:
        stopping = errors(self.found)
        if stopping:
            unique = {(d.code, d.where, d.what): d for d in stopping}
            raise ConfigError(*unique.values())


def make_plan(
    config: Config,
    hardware: Hardware,
    *,
    world_size: int,
    num_nodes: int = 1,
    launcher: str,
    run_dir: str,
    shape: ModelShape | None = None,
) -> Plan:
    """The plan for ``world_size`` processes on ``num_nodes`` nodes like ``hardware``.

    ``shape`` may be left out when ``model.config`` is given. Raises ConfigError with every finding that needs the hardware or the world size.
    """
    values = config.to_json()
    training, data, model = values["training"], values["data"], values["model"]
    findings = _Findings()
    findings.found += check_world(hardware, world_size, num_nodes, training)
    findings.found += check_algorithm(training["algorithm"])
    findings.found += _check_lora(values.get("lora"))
    if shape is None and model.get("config"):
        shape = findings.attempt(lambda: shape_from_config(model["config"]))
    findings.found += _check_positions(shape, data)
    chosen = findings.attempt(lambda: choose_strategy(training["distributed_strategy"], training, shape, hardware, world_size))
    strategy, reason = chosen or ("single", "")
    mesh = findings.attempt(lambda: mesh_for(training.get("parallelism") or {}, world_size, sharded=strategy in SHARDED)) or Mesh()
    backend = findings.attempt(lambda: choose_backend(training["ddp_backend"], hardware, training["ddp_timeout"]))
    precision = findings.attempt(lambda: choose_precision(training["mixed_precision"], hardware))
    batch = findings.attempt(
        lambda: split_batch(training["per_device_train_batch_size"], training["gradient_accumulation_steps"], mesh.data_parallel_size)
    )
    optimizer = findings.attempt(lambda: optimizer_spec(training))
    findings.stop()
    assert backend is not None and precision is not None and batch is not None and optimizer is not None  # stop() raised otherwise
    attention = choose_attention(model["attn_implementation"], hardware, precision, data["packing"])
    return Plan(
        algorithm=training["algorithm"],
        strategy=strategy,
        strategy_reason=reason,
        mesh=mesh,
        world_size=world_size,
        num_nodes=num_nodes,
        device=hardware.device,
        backend=backend[0],
        timeout_seconds=training["ddp_timeout"],
        precision=precision,
        batch=batch,
        seq_len=data["max_length"],
        packing=data["packing"],
        attention=attention.choice,
        recompute=training["gradient_checkpointing"],
        compile=training["torch_compile"],
        optimizer=optimizer,
        decisions=(
            *_main_decisions(hardware, world_size, num_nodes, strategy, reason, batch, precision),
            backend[1],
            attention,
            *_engine_decisions(training, strategy),
            *knob_decisions(training, data, hardware, strategy),
        ),
        config=values,
        config_digest=config.digest(),
        run_dir=run_dir,
        shape=shape,
        launcher=launcher,
        paceline_version=__version__,
    )


def _main_decisions(
    hardware: Hardware, world_size: int, num_nodes: int, strategy: str, reason: str, batch: BatchSplit, precision: Precision
) -> tuple[Decision, ...]:
    where = f"{world_size} process(es) on {num_nodes} node(s)"
    made = [
        Decision("device", hardware.device, f"{hardware.device_note}; {hardware.device_name}"),
        Decision("training.distributed_strategy", strategy, reason),
        Decision("processes", where, "one a device" if hardware.device == "cuda" else f"{hardware.cpu_count} cores a node"),
        Decision("batch", str(batch), "per_device_train_batch_size × gradient_accumulation_steps × data-parallel ranks"),
        Decision(
            "training.mixed_precision",
            precision.compute,
            f"{precision.reason}; master weights {precision.master}, gradients averaged in {precision.reduce}",
        ),
    ]
    per_node = world_size // num_nodes
    if hardware.device == "cpu" and per_node > hardware.cpu_count:
        note = f"{per_node} processes share {hardware.cpu_count} cores: each is slower than it could be"
        made.append(Decision("cores", "shared", note))
    return tuple(made)


def _engine_decisions(training: Mapping[str, Any], strategy: str) -> list[Decision]:
    """A section of an engine that the named strategy does not use is said to be off."""
    sections = {"deepspeed": training.get("deepspeed"), "fsdp": training.get("fsdp"), "fsdp_config": training.get("fsdp_config")}
    return [
        Decision(f"training.{name}", "off", f"the config names the strategy '{strategy}', which does not read it", granted=False)
        for name, value in sections.items()
        if value
    ]


def check_world(hardware: Hardware, world_size: int, num_nodes: int, training: Mapping[str, Any]) -> list[Diagnostic]:
    """Findings about the number of processes and nodes."""
    if world_size < 1 or num_nodes < 1:
        return [Diagnostic("plan.world_size", "processes and nodes are counted from 1 up", "--nproc", f"{world_size} on {num_nodes} nodes", "1 or more")]
    if world_size % num_nodes:
        return [
            Diagnostic("plan.world_nodes", "every node starts the same number of processes", "--nnodes", f"{world_size} processes on {num_nodes} nodes", "a multiple")
        ]
    found = []
    per_node = world_size // num_nodes
    if hardware.device == "cuda" and per_node > hardware.num_devices:
        found.append(
            Diagnostic(
                "plan.too_few_devices",
                f"{per_node} processes a node, but {hardware.num_devices} CUDA device(s) are visible",
                "--nproc",
                str(per_node),
                f"--nproc {hardware.num_devices}, or training.use_cpu=true",
            )
        )
    if training.get("distributed") is False and world_size > 1:
        found.append(
            Diagnostic(
                "plan.distributed_off",
                f"the config says distributed: false, but {world_size} processes are started",
                "training.distributed",
                "false",
                "distributed: true, or start one process",
            )
        )
    return found


def _check_lora(lora: Any) -> list[Diagnostic]:
    if not lora:
        return []
    return [
        Diagnostic(
            "plan.lora_not_available",
            "a lora: section is valid in a config but adapters cannot be trained by this version",
            "lora",
            "set",
            "remove the section to train all weights",
        )
    ]


def _check_positions(shape: ModelShape | None, data: Mapping[str, Any]) -> list[Diagnostic]:
    longest = data["max_length"]
    if shape is None or not shape.max_position_embeddings or longest <= shape.max_position_embeddings:
        return []
    return [
        Diagnostic(
            "plan.max_positions",
            f"rows of {longest} tokens are longer than the {shape.max_position_embeddings} positions the model knows",
            "data.max_length",
            str(longest),
            f"data.max_length: {shape.max_position_embeddings}",
        )
    ]
