"""What a config makes the product do, part by part: each probe drives real code of a run on stand-ins, and
answers what came of it.

A probe never answers the config itself, a digest of it, or a sentence about it.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from machines import A100

from paceline.algorithms.algorithm import WithBalanceLoss, algorithm_class
from paceline.config.load import load_config
from paceline.config.schema import Config
from paceline.core.plugins.tables import ALGORITHMS
from paceline.core.rundir import RunDir
from paceline.plan.hardware.probe import Hardware
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.plan.timeouts import WaitLimits
from paceline.protocols.roles import Role
from paceline.rules.planning import make_plan
from paceline.training.loop.train_state import TrainState
from paceline.training.loop.trainer import Hooks
from paceline.training.loop.window_source import BatchLayout, Epochs, RunComponents
from paceline.training.run.build import RunBuilder

# an algorithm from outside the tree
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

Tree = dict[str, Any]
GIB = 1 << 30
CPU = Hardware(
    "cpu",
    "Some CPU",
    1,
    16 * GIB,
    16 * GIB,
    1,
    True,
    True,
    8,
    None,
    ("gloo",),
    packages=("deepspeed", "peft", "bitsandbytes"),
)
MODEL = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 4096,
}
#: What of a plan the ranks go by; ``test_what_a_plan_decides_is_read_by_the_ranks`` holds that each is read
#: below the plan.
DECIDES = (
    "algorithm",
    "strategy",
    "mesh",
    "world_size",
    "device",
    "backend",
    "timeout_seconds",
    "precision",
    "batch",
    "seq_len",
    "packing",
    "attention",
    "recompute",
    "compile",
    "optimizer",
    "engine",
    "adapter",
    "reference",
    "models",
    "run_dir",
    "save_async",
)


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> Tree:
    """``base`` with the dotted keys of ``more`` set."""
    tree: Tree = json.loads(json.dumps(base))
    for path, value in more.items():
        *sections, name = path.split(".")
        inner = tree
        for section in sections:
            inner[section] = inner.get(section) or {}
            inner = inner[section]
        inner[name] = value
    return tree


def plain(tree: Tree) -> Tree:
    """The smallest whole config, and ``tree`` in it."""
    base = {
        "model": {"config": MODEL, "tokenizer": "t"},
        "data": {"train": [{"path": "rows.jsonl"}]},
        "training": {"max_steps": 40},
    }
    flat = {f"{s}.{k}": v for s, keys in tree.items() for k, v in keys.items()}
    return merged(base, flat)


def plan_of(config: Config, world: int = 1, hardware: Hardware = CPU) -> Plan:
    return make_plan(Job(config, hardware, world_size=world, launcher="spawn", run_dir="/nowhere/run"))


def plan(world: int = 1, hardware: Hardware = CPU) -> Callable[[Tree], Any]:
    """What the ranks are told to do."""

    def probe(tree: Tree) -> Any:
        made = plan_of(Config.from_json(plain(tree)), world, hardware).to_json()
        made["precision"].pop("reason")
        return {name: made.get(name) for name in DECIDES}

    return probe


def said_idle(key: str) -> Callable[[Tree], Any]:
    """Whether the plan says that a key of images does nothing, as rows have none."""
    return lambda tree: any(d.subject == key for d in plan_of(Config.from_json(plain(tree))).decisions)


def limits(tree: Tree) -> Any:
    """How long ranks wait for one of them."""
    return WaitLimits.of(Config.from_json(plain(tree)).training)


def loaded(world: int = 2) -> Callable[[Tree], Any]:
    """The same, of a YAML that is read with all files that it names."""

    def probe(tree: Tree) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "c.yaml"
            path.write_text(json.dumps(plain(tree)))
            (Path(folder) / "accelerate.yaml").write_text(
                "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n"
            )
            made = plan_of(load_config(path).config, world).to_json()
        return {name: made.get(name) for name in DECIDES}

    return probe


class Table:
    """20 documents, as much of a token table as a source of rows asks for."""

    weights, group, columns, images = (1.0,), 1, {}, None
    lengths = np.array([3 + i % 7 for i in range(20)], np.int32)
    group_lengths, group_dataset, source_row = lengths, np.zeros(20, np.int32), np.arange(20)

    def __len__(self) -> int:
        return 20

    def facts(self, document: int) -> Any:
        return {"prompt": "p", "answer": "a"}

    def room(self, seq_len: int) -> int:
        return seq_len

    def coded(self, document: int) -> Any:
        return np.arange(self.lengths[document], dtype=np.int32)


WORLD = SimpleNamespace(
    world_size=1,
    rank=0,
    is_main=True,
    device=torch.device("cpu"),
    any=bool,
    barrier=lambda: None,
    all_gather_json=lambda x: [x],
    broadcast_json=lambda x: x,
    env=SimpleNamespace(local_world_size=1),
)
STRATEGY = SimpleNamespace(data_parallel_rank=0, data_parallel_size=1, collective_decoding=False, world=WORLD)
CUT, EPOCHS = BatchLayout(2, 1, 0, 1), Epochs((5,) * 8, 40)
RUNNER = SimpleNamespace(strategy=STRATEGY)


def runner(of: RunBuilder) -> Any:
    """A runner whose strategy knows the plan."""
    return SimpleNamespace(strategy=SimpleNamespace(**vars(STRATEGY), plan=of.plan))


def session(tree: Tree) -> RunBuilder:
    config = Config.from_json(plain(tree))
    prepared = SimpleNamespace(
        train=Table(),
        eval=Table(),
        pad_token_id=0,
        stop_token_ids=(1,),
        vocab_size=401,
        fingerprint="f",
        train_fingerprint="t",
        definition="v",
        path=Path("p"),
        tokenizer_path=Path("t"),
        images=None,
    )
    made = plan_of(config)
    return RunBuilder(WORLD, made, config, prepared, RunDir.at(made.run_dir))  # type: ignore[arg-type]


def algorithm(tree: Tree) -> Any:
    """The algorithm's own numbers, all that its arithmetic reads."""
    of = session(tree)
    return {k: repr(v) for k, v in vars(algorithm_class(of.plan.algorithm)(**of.algorithm_options())).items()}


def router_loss(tree: Tree) -> Any:
    """What a mixture's run adds to the losses of its algorithm."""
    made = session(tree).algorithm()
    return isinstance(made, WithBalanceLoss) and vars(made)["_how"]


def trainer(tree: Tree) -> Any:
    """Rates, seeds, clipping, spikes, when it evaluates and saves, what is best, and how it evaluates."""
    of = session(tree)
    trained = ALGORITHMS.load(of.plan.algorithm)(**of.algorithm_options())
    with (
        mock.patch("paceline.training.loop.throughput.PeakFlops"),
        mock.patch("paceline.training.run.build.evaluate") as evaluated,
    ):
        parts = RunComponents(
            RUNNER, trained, {}, mock.Mock(), EPOCHS, TrainState(), of.evaluated(RUNNER, {}, trained)
        )  # type: ignore[arg-type]
        made = of.trainer(parts, Hooks())
        if made.evaluate is not None:
            made.evaluate()
    cuts = [(call.args[-2], call.args[-1]) for call in evaluated.call_args_list]
    seeds = [made.seed_for(step, 0) for step in (0, 1)]
    rates = [made.lr(step) for step in range(40)]
    return made.max_grad_norm, made.cadence, made.best, made.spike_rule, seeds, rates, cuts


def epochs(tree: Tree) -> Any:
    return session(tree).epochs(SimpleNamespace(num_rows=lambda epoch: 37), BatchLayout(4, 1, 0, 1))


def order(tree: Tree) -> Any:
    return session(tree).source(train=True).document_ids(0, range(8))


def calls(*names: str) -> Callable[[Callable[[Tree], Any]], Callable[[Tree], Any]]:
    """The probe answers with what the functions ``names`` were called with (``module.function``)."""

    def decorate(run: Callable[[Tree], Any]) -> Callable[[Tree], Any]:
        def probe(tree: Tree) -> Any:
            with contextlib.ExitStack() as stack:
                made = {name: stack.enter_context(mock.patch(f"paceline.{name}")) for name in names}
                more = run(tree)
            said = [f"{name}: {fake.mock_calls}" for name, fake in made.items()]
            return re.sub(r" at 0x[0-9a-f]+| id='\d+'", "", repr((said, more)))

        return probe

    return decorate


@calls(
    "training.run.build.Checkpointer",
    "training.run.build.open_uploads",
    "training.checkpointing.saver.hugging_face_files",
    "training.run.build.kept_files",
    "training.checkpointing.saver.run_state",
    "training.run.build.RunBuilder.trainer",
)
def saver(tree: Tree) -> None:
    of = session(tree)
    root = SimpleNamespace(hf=SimpleNamespace(config=SimpleNamespace(to_dict=dict)), adapter=None)
    handles = {Role.POLICY: SimpleNamespace(root=root)}
    parts = RunComponents(
        RUNNER, ALGORITHMS.load("sft")(), handles, mock.Mock(), EPOCHS, TrainState(best_step=3), dict
    )  # type: ignore[arg-type]
    with (
        mock.patch("paceline.runlog.events.CheckpointSaved"),
        mock.patch.object(RunBuilder, "parts", lambda _: parts),
    ):
        of.build(Hooks(), lambda event, notes: None)
        saves = RunBuilder.trainer.call_args.args[2]  # type: ignore[attr-defined]
        saves.save(4)


_ROLLOUT = "training.rollout.build."


@calls(
    _ROLLOUT + "Scorer",
    _ROLLOUT + "RolloutWindows",
    _ROLLOUT + "LocalEngine",
    _ROLLOUT + "open_tokenizer",
    _ROLLOUT + "Sharing",
    "training.rollout.server.Server",
    "training.rollout.server.ServerEngine",
    "training.rollout.server.FolderSender",
    "training.rollout.server.WeightFolder",
    "training.rollout.server.WeightProbe",
    "training.rollout.server.environment",
)
def rollout(tree: Tree) -> Any:
    """How answers are written and judged, and the windows made of them."""
    of = session(tree)
    own = ALGORITHMS.load(of.plan.algorithm)(**of.algorithm_options())
    root = mock.Mock()
    root.hf.generation_config.eos_token_id = 1
    made = of.rollouts(runner(of), own, {Role.POLICY: SimpleNamespace(root=root)}, CUT)  # type: ignore[dict-item]
    made.scorer.row_checks = ()
    made.windows(SimpleNamespace(table=Table()), EPOCHS, 0, None)  # type: ignore[arg-type]
    made.engine(root)
    return made.rollout_layout


def own_answers(tree: Tree) -> Any:
    """Which rows the student answers itself, and how."""
    from paceline.training.rollout.on_policy_distillation import own_answers as answered

    of = session(tree)
    table = mock.MagicMock()
    table.__len__.return_value, table.coded.return_value = 1, np.array([~1, ~2, 3], np.int32)
    source: Any = SimpleNamespace(table=table)
    made = answered(mock.Mock(), source, of.plan, of.config.training, of.prepared, STRATEGY, mock.Mock())  # type: ignore[arg-type]
    return made.fraction, made.sampling, made.limits


@calls(
    "training.reporting.observers.open_trackers",
    "training.reporting.observers.Console",
    "training.reporting.observers.RunLog",
    "training.reporting.observers.Heartbeat",
)
def observers(tree: Tree) -> Any:
    from paceline.runlog import events
    from paceline.runlog.redact import Redactor
    from paceline.training.reporting import observers as room

    config = Config.from_json(plain(tree))
    with mock.patch.object(Config, "to_json", dict):  # trackers show the config: that is its echo
        made = room.Observers(RunDir.at("/nowhere"), 0, config, {}, Redactor(), leads=False)  # type: ignore[arg-type]
        made.begin(events.RunStarted("0", 1, total_steps=40))
    return [made.is_logged(events.Step(step, 0.0, 1.0)) for step in range(1, 20)]


@calls("training.run.model_factories.HFModelFactory")
def factory(tree: Tree) -> None:
    """What the policy is built from."""
    of = session(tree)
    with mock.patch.object(type(of.config.model), "__repr__", lambda self: "model"):
        of.models.trained(Role.POLICY)


@calls("strategies.ddp.DistributedDataParallel")
def ddp(tree: Tree) -> Any:
    from paceline.strategies import ddp as room

    world = SimpleNamespace(**{**vars(WORLD), "world_size": 2})
    made = room.DDP(world, plan_of(Config.from_json(plain(tree)), 2))  # type: ignore[arg-type]
    with mock.patch.object(room, "same_states"):  # there is no group
        made.wrap(Role.POLICY, torch.nn.Linear(1, 1))  # type: ignore[arg-type]


@calls("strategies.ddp.ZeroRedundancyOptimizer")
def zero_redundancy(tree: Tree) -> None:
    from paceline.strategies.ddp import ZeroRedundancy

    world = SimpleNamespace(**{**vars(WORLD), "world_size": 2})
    root = SimpleNamespace(plain_named_parameters=lambda: [("w", torch.nn.Parameter(torch.zeros(1)))])
    plan = plan_of(Config.from_json(plain(tree)), 2)
    ZeroRedundancy(world, plan)._make_optimizer(plan.optimizer, root)  # type: ignore[arg-type]


@calls("training.run.startup.prepare", "training.run.startup.written_for")
def preparation(tree: Tree) -> None:
    """With what a rank has its data prepared."""
    from paceline.training.run.startup import prepare_data

    config = Config.from_json(plain(tree))
    with mock.patch.object(type(config.data), "__repr__", lambda self: "data"):
        prepare_data(config, plan_of(config), 1, {"PACELINE_CACHE": "/nowhere"})


def launch(tree: Tree) -> Any:
    from paceline.launch.preflight.plan_job import cluster_of, num_processes

    config = Config.from_json(plain(tree))
    nodes = config.launch.nnodes
    processes = num_processes(config, A100)
    return cluster_of(config, SimpleNamespace(world_size=processes * nodes, num_nodes=nodes, device="cpu"))  # type: ignore[arg-type]


def job(tree: Tree) -> Any:
    """What a scheduler is asked to run."""
    from paceline.schedulers.check_job import JobRequest, gpus_per_node, job_of, planned_cluster

    config = Config.from_json(plain(tree))
    with mock.patch("paceline.schedulers.check_job.probe_hardware", lambda environ: A100):
        gpus = gpus_per_node(config, {})
    request = JobRequest(Path("/c.yaml"), (), "slurm", ("paceline",), Path("/"))
    return job_of(config, request, gpus or 0, None), planned_cluster(config.launch, gpus or 0)


def slurm(tree: Tree) -> Any:
    """The batch script, and the commands that submit it."""
    from paceline.schedulers.slurm.job import slurm_job

    return slurm_job(job(tree)[0])


def on(scheduler: str) -> Callable[[Tree], Any]:
    """What another scheduler is given."""

    def probe(tree: Tree) -> Any:
        from paceline.schedulers.job import scheduler_named

        made = replace(job(tree)[0], checkpoint_url="s3://b/r")
        made = made if made.site.image else replace(made, site=made.site.model_copy(update={"image": "i"}))
        render = scheduler_named(scheduler)
        with mock.patch(f"{render.__module__}.shipped_config", lambda config, environ: {"c.yaml": "a: 1"}):
            return render(made)

    return probe


def mpi(tree: Tree) -> Any:
    """MPI's command line."""
    from paceline.schedulers.hosts import mpi_job

    return mpi_job(job(tree)[0])


def array(tree: Tree) -> Any:
    """The batch script of a sweep."""
    from paceline.schedulers.job import ArrayTask
    from paceline.schedulers.slurm.job import slurm_job

    return slurm_job(replace(job(tree)[0], tasks=(ArrayTask("a", (), "/a"), ArrayTask("b", (), "/b"))))


def gpu(tree: Tree) -> Any:
    """The accelerators that a launch plans for."""
    return job(tree)[1]


def store(tree: Tree) -> Any:
    """What a start on several nodes without a secret says."""
    from paceline.launch.preflight.machine import meeting_place

    with mock.patch.dict("os.environ", clear=True):
        loaded = SimpleNamespace(config=Config.from_json(plain(tree)), provenance={})
        return meeting_place(loaded, 2)  # type: ignore[arg-type]


def device(tree: Tree) -> Any:
    """What the run finds itself on, on a machine with a GPU."""
    from paceline.plan.hardware import probe as hardware
    from paceline.plan.hardware.probe_results import ProbedDevice, ProbeResults, SmiAnswer

    config = Config.from_json(plain(tree))
    sights = ProbeResults(nvidia=SmiAnswer((ProbedDevice("NVIDIA A100", GIB, GIB, 8.0, "GPU-0"),)))
    with mock.patch.object(hardware, "look", lambda environ: sights):
        return hardware.probe_hardware({}, use_cpu=config.training.use_cpu).device


def options_of_own_strategy(tree: Tree) -> Any:
    from paceline.strategies.strategy import Single

    return Single(WORLD, plan_of(Config.from_json(plain(tree)))).options  # type: ignore[arg-type]


def run_directory(tree: Tree) -> Any:
    return Config.from_json(plain(tree)).run_directory()


def chat(tree: Tree) -> Any:
    from paceline.generation import settings

    made = {"generation": Config.from_json(plain(tree)).to_json()["generation"]}
    with (
        mock.patch.object(settings, "run_of", lambda path: RunDir.at("/nowhere")),
        mock.patch.object(settings, "stored_config", lambda run: made),
    ):
        return settings.sampling_of(Path("/nowhere"), {})


def loading(tree: Tree) -> Any:
    from paceline.training.loop.window_source import Prefetcher

    return Prefetcher.of(Config.from_json(plain(tree)).training, torch.device("cuda", 0))


def tokenizer(tree: Tree) -> Any:
    """What the tokenizer is made of."""
    from paceline.data.tokenizer import load as room

    with mock.patch.object(room, "tokenizer_folder", lambda model: Path(model.tokenizer or "")):
        return room.tokenizer_spec(Config.from_json(plain(tree)).model)


@calls("core.security.remote_code.check_code", "models.loading.model_source.check_code")
def factory_source(tree: Tree) -> Any:
    """Which model is loaded, from where, with how many rows of 401 that the tokenizer needs."""
    import transformers

    from paceline.models.factory import HFModelFactory

    found = transformers.AutoConfig.for_model(**MODEL)
    asked: list[Any] = []

    def from_pretrained(name: str, **options: Any) -> Any:
        asked.append((name, options))
        return found

    with (
        mock.patch.object(transformers.AutoConfig, "from_pretrained", from_pretrained),
        mock.patch("paceline.models.loading.weights_source.quantised_folder", lambda model: None),
    ):
        made = HFModelFactory(Config.from_json(plain(tree)).model, vocab_size=401)
    return asked, made.hf_config["vocab_size"], made.hf_config["hidden_size"]


def rollout_item(tree: Tree) -> Any:
    """As ``rollout``, where a key of one reward is written under ``rewards[]``."""
    item = tree["training"].pop("rollout_item", {})
    rewards = tree["training"]["rollout"]["rewards"]
    return rollout(
        {
            **tree,
            "training": {
                **tree["training"],
                "rollout": {**tree["training"]["rollout"], "rewards": [{**rewards[0], **item}]},
            },
        }
    )


def reference(tree: Tree) -> Any:
    """How the reference's log-probabilities are asked for ahead."""
    from paceline.training.run import reference_logprobs as room

    of = session(tree)
    with contextlib.ExitStack() as stack:
        for name in ("ReferenceCache", "weights_identity"):
            stack.enter_context(mock.patch.object(room, name))
        stack.enter_context(mock.patch.object(room, "cached_columns", lambda *_: ({}, "")))
        cut = stack.enter_context(
            mock.patch.object(RunBuilder, "batch_layout", side_effect=RunBuilder.batch_layout)
        )
        room.compute_reference_logprobs(of, RUNNER, {}, mock.Mock())
    return [call.args[1:] for call in cut.call_args_list]


def claim(tree: Tree) -> Any:
    """Whether a folder that holds another run may be taken, as the command line asks before anything
    starts, and a rank that nobody started.
    """
    from paceline.cli import start as command
    from paceline.training.run.record import RunRecord

    config, asked = Config.from_json(plain(tree)), []
    rank = SimpleNamespace(
        start=SimpleNamespace(plan=None, config_file="c.yaml"), plan=plan_of(config), config=config
    )
    rank.run_dir, rank.redact, rank.lock_run_dir = None, str, lambda: None
    rank.create_run_dir = lambda plan: RunRecord.create_run_dir(rank, plan)

    def claimed(run: Any, **said: Any) -> None:
        asked.append(said["overwrite"])
        raise InterruptedError

    loaded = SimpleNamespace(config=config, notes=(), provenance={})
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("paceline.training.run.record.claim", claimed))
        stack.enter_context(mock.patch("paceline.training.run.record.share_plan", lambda world, make: make()))
        stack.enter_context(mock.patch("paceline.launch.claim_run_dir.check_claim", claimed))
        stack.enter_context(mock.patch.object(command, "load_to_start", lambda *_: loaded))
        stack.enter_context(mock.patch("paceline.launch.start_run.planned", lambda *_, **__: (rank.plan, ())))
        for run in (
            lambda: RunRecord.agree_on_plan(rank, WORLD),
            lambda: command.start(Path("c.yaml"), [], command.LaunchOptions()),
        ):  # type: ignore[arg-type]
            with contextlib.suppress(InterruptedError):
                run()
    assert len(asked) == 2 and len(set(asked)) == 1, "both ask the same"
    return asked
