"""Logs of failed and of sound trainings, made from wordings: five trainers, interleaved, cut, coloured.

``wordings/*.txt``: ``@ id class how exit`` begins an id; ``--`` stands between its wordings. ``how``:

- ``exc``: lines before, then a traceback that ends in the exception
- ``killed``: the process is gone, the lines are another program's; ``sched``: a scheduler stops all ranks
- ``line``, ``lines``, ``none``: plain lines; ``watchdog``: every rank reports it
- ``agent``: torchrun's traceback
- ``progress``: training goes on, and says so
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

WORDINGS = Path(__file__).parent / "wordings"
_EXCEPTION = re.compile(
    r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Shutdown|Signal\w*|Timeout)?\b(:|$)"
)
_TYPED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Failure|Pool|Timeout)(?::|$|:? )")


@dataclass(frozen=True)
class Wording:
    """One way in which a failure is written. ``number``: its place among those of the id."""

    id: str
    kind: str
    how: str
    exit: int
    number: int
    lines: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        return self.number % 2 == 1


@dataclass(frozen=True)
class MadeLog:
    """A log and what is true of it. ``root``: texts of the lines that show the cause, if they are left."""

    text: str
    wording: Wording | None
    rank: int | None
    root: tuple[str, ...] = ()
    style: str = ""


@dataclass(frozen=True)
class Trainer:
    """What a program writes: ``head`` at the start, ``frames`` of its tracebacks, ``step`` for each step."""

    name: str
    head: Sequence[str]
    frames: Sequence[str]
    step: str
    end: Sequence[str]


_SITE = "/opt/venv/lib/python3.11/site-packages"
TRAINERS = (
    Trainer(
        "trl",
        (
            "The following values were not passed to `accelerate launch` and had defaults used instead:",
            "\t`--dynamo_backend` was set to a value of `'no'`",
            "Loading checkpoint shards: 100%|██████████| 4/4 [00:03<00:00,  1.31it/s]",
            "No label_names provided for model class `PeftModelForCausalLM`. Since `PeftModel` hides"
            " base models"
            " input arguments, if label_names is not given, label_names can't be set automatically",
            "Using auto half precision backend",
            "***** Running training *****",
        ),
        (
            '  File "/work/train.py", line 88, in <module>',
            "    trainer.train()",
            f'  File "{_SITE}/transformers/trainer.py", line 2245, in train',
            "    return inner_training_loop(",
            "           ^^^^^^^^^^^^^^^^^^^^",
            f'  File "{_SITE}/transformers/trainer.py", line 2560, in _inner_training_loop',
            "    tr_loss_step = self.training_step(model, inputs, num_items_in_batch)",
            f'  File "{_SITE}/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl',
            "    return self._call_impl(*args, **kwargs)",
        ),
        "{{'loss': {loss:.4f}, 'grad_norm': {norm:.3f}, 'learning_rate': 1e-05, 'epoch': {epoch:.2f}}}",
        ("{'train_runtime': 812.1, 'train_samples_per_second': 4.1, 'train_loss': 1.02, 'epoch': 1.0}",),
    ),
    Trainer(
        "axolotl",
        (
            "[2025-03-04 01:02:03,111] [INFO] [axolotl.utils.config.normalize_config:237] [PID:4711] [RANK:0]"
            " GPU memory usage baseline: 0.000GB ()",
            "[2025-03-04 01:02:09,201] [WARNING] [axolotl.utils.schemas] [PID:4711] [RANK:0]"
            " `pad_to_sequence_len:"
            " true` is recommended when using sample_packing",
            "[2025-03-04 01:02:11,001] [INFO] [axolotl.train.train:142] [PID:4711] [RANK:0] Starting"
            " trainer...",
        ),
        (
            '  File "<frozen runpy>", line 198, in _run_module_as_main',
            f'  File "{_SITE}/axolotl/cli/train.py", line 70, in do_cli',
            "    do_train(parsed_cfg, parsed_cli_args)",
            f'  File "{_SITE}/axolotl/train.py", line 196, in train',
            "    trainer.train(resume_from_checkpoint=resume_from_checkpoint)",
        ),
        " {pct:3d}%|███       | {step}/{total} [00:{sec:02d}<04:11,  1.12it/s]\n"
        "{{'loss': {loss:.4f}, 'grad_norm': {norm:.3f}, 'learning_rate': 2e-05, 'epoch': {epoch:.2f}}}",
        (
            "[2025-03-04 03:02:11,001] [INFO] [axolotl.train.train:231] [PID:4711] [RANK:0] Training"
            " completed!",
        ),
    ),
    Trainer(
        "llamafactory",
        (
            "[INFO|2025-03-04 01:02:03] llamafactory.hparams.parser:401 >> Process rank: 0, world size: 4,"
            " device: cuda:0, distributed training: True, compute dtype: torch.bfloat16",
            "[INFO|2025-03-04 01:02:08] llamafactory.data.loader:143 >> Loading dataset"
            " alpaca_en_demo.json...",
            "[WARNING|2025-03-04 01:02:09] llamafactory.data.processor:154 >> Dropped lengthy example"
            " with length"
            " 9021 > 4096.",
            "[INFO|trainer.py:2414] 2025-03-04 01:02:30,001 >> ***** Running training *****",
        ),
        (
            f'  File "{_SITE}/llamafactory/launcher.py", line 23, in <module>',
            "    launch()",
            f'  File "{_SITE}/llamafactory/train/sft/workflow.py", line 102, in run_sft',
            "    train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)",
        ),
        "[INFO|2025-03-04 01:{min:02d}:{sec:02d}] llamafactory.train.callbacks:143 >> {{'loss': {loss:.4f},"
        " 'learning_rate': 4.9e-05, 'epoch': {epoch:.2f}, 'throughput': 5112.11}}",
        ("***** train metrics *****", "  train_runtime            = 0:12:11.10"),
    ),
    Trainer(
        "swift",
        (
            "[INFO:swift] Start time of running main: 2025-03-04 01:02:03.111111",
            "[INFO:swift] The logging file will be saved in: /out/v0-2025/logging.jsonl",
            "[WARNING:swift] Setting `use_cache` to False because gradient_checkpointing is on",
        ),
        (
            f'  File "{_SITE}/swift/cli/sft.py", line 10, in <module>',
            "    sft_main()",
            f'  File "{_SITE}/swift/llm/train/sft.py", line 269, in train',
            "    trainer.train(trainer.args.resume_from_checkpoint)",
        ),
        "{{'loss': {loss:.6f}, 'token_acc': 0.71, 'grad_norm': {norm:.3f}, 'learning_rate': 1e-05,"
        " 'memory(GiB)': 61.1, 'epoch': {epoch:.2f}, 'global_step/max_steps': '{step}/{total}',"
        " 'percentage': '{pct}.00%', 'elapsed_time': '10m', 'remaining_time': '1h'}}",
        ("[INFO:swift] End time of running main: 2025-03-04 03:02:03.111111",),
    ),
    Trainer(
        "deepspeed",
        (
            "[2025-03-04 01:02:03,111] [INFO] [runner.py:585:main] cmd = /usr/bin/python -u -m"
            " deepspeed.launcher.launch --world_info=eyJ --master_addr=127.0.0.1 --master_port=29500"
            " train.py",
            "[2025-03-04 01:02:05,311] [INFO] [launch.py:138:main] 0 NCCL_IB_TIMEOUT=22",
            "[2025-03-04 01:02:25,311] [INFO] [comm.py:669:init_distributed] Initializing TorchBackend in"
            " DeepSpeed with backend nccl, timeout=0:30:00",
            "[2025-03-04 01:02:35,311] [INFO] [config.py:1001:print]   loss_scale ................... 0",
        ),
        (
            '  File "/workspace/train.py", line 412, in main',
            "    loss = engine(batch)",
            f'  File "{_SITE}/deepspeed/utils/nvtx.py", line 18, in wrapped_fn',
            "    ret_val = func(*args, **kwargs)",
            f'  File "{_SITE}/deepspeed/runtime/engine.py", line 1899, in forward',
        ),
        "[2025-03-04 01:{min:02d}:{sec:02d},100] [INFO] [logging.py:96:log_dist] [Rank 0] step={step},"
        " skipped=0,"
        " lr=[9.9e-06], mom=[(0.9, 0.95)], loss={loss:.4f}",
        ("[2025-03-04 03:02:05,311] [INFO] [launch.py:347:main] Process 4712 exits successfully.",),
    ),
)


@dataclass
class _Log:
    """Lines by stream: of each rank, and of the launcher (-1); merged at the end."""

    draw: random.Random
    world: int
    before: list[tuple[int, str]] = field(default_factory=list)
    streams: dict[int, list[str]] = field(default_factory=dict)
    after: list[tuple[int, str]] = field(default_factory=list)
    root: list[str] = field(default_factory=list)

    def say(self, rank: int, *lines: str) -> None:
        self.streams.setdefault(rank, []).extend(lines)


def wordings(*names: str) -> list[Wording]:
    """All wordings of the files ``names``, in order."""
    made = []
    for name in names:
        for part in re.split(r"(?m)^@ ", (WORDINGS / f"{name}.txt").read_text())[1:]:
            head, _, body = part.partition("\n")
            ident, kind, how, code = head.split()
            for number, text in enumerate(body.strip("\n").split("\n--\n")):
                made.append(Wording(ident, kind, how, int(code), number, tuple(text.split("\n"))))
    return made


def harmless() -> list[str]:
    """Texts of sound trainings that look like failures."""
    return (WORDINGS / "clean.txt").read_text().strip("\n").split("\n--\n")


def sound_log(seed: int) -> MadeLog:
    """A training that goes on, or has ended well, with some of ``harmless``."""
    draw = random.Random(seed)
    trainer = draw.choice(TRAINERS)
    log = _Log(draw, draw.choice((1, 2, 4, 8)))
    traps = draw.sample(harmless(), 4)
    log.before += [(0, line) for line in trainer.head]
    steps = draw.randint(8, 40)
    for step in range(1, steps + 1):
        log.before += [(0, line) for line in _step(draw, trainer, step, 100)]
        if step < steps - 5 and traps and draw.random() < 0.3:
            log.before += [(draw.randrange(log.world), line) for line in traps.pop().split("\n")]
    if draw.random() < 0.6:
        log.before += [(0, line) for line in trainer.end]
    return MadeLog(_written(log, draw, cuts=False), None, None, style=trainer.name)


def handled_log(wording: Wording, seed: int) -> MadeLog:
    """A failure that the trainer survives: its traceback is logged, and more steps follow."""
    draw = random.Random(seed)
    trainer = draw.choice(TRAINERS)
    log = _Log(draw, 1)
    log.before += [(0, line) for line in trainer.head]
    for step in range(1, 5):
        log.before += [(0, line) for line in _step(draw, trainer, step, 100)]
    log.before += [
        (0, "WARNING: caught, going on with a smaller batch:"),
        (0, "Traceback (most recent call last):"),
    ]
    log.before += [(0, line) for line in (*trainer.frames, *_filled(wording, draw, 0, 1))]
    for step in range(5, 20):
        log.before += [(0, line) for line in _step(draw, trainer, step, 100)]
    return MadeLog(_written(log, draw, cuts=False), None, None, style=trainer.name)


def failed_log(wording: Wording, seed: int) -> MadeLog:
    """A log of one failure, distorted as ``seed`` says."""
    draw = random.Random(f"{wording.id} {wording.number} {seed}")
    trainer = draw.choice(TRAINERS)
    log = _Log(draw, draw.choice((2, 4, 8)))
    rank = 0 if wording.how in ("progress", "agent") else draw.randrange(log.world)
    lines = _filled(wording, draw, rank, log.world)
    log.before += [(0, line) for line in trainer.head]
    early = wording.how == "none" or wording.id in EARLY
    if wording.how == "none":
        log.before = []
    steps = 0 if early else draw.randint(0, 30)
    for step in range(1, steps + 1):
        log.before += [(0, line) for line in _step(draw, trainer, step, 100)]
        if draw.random() < 0.05 and step < steps - 3:
            log.before += [(0, line) for line in draw.choice(harmless()).split("\n")]
    log.root += [line for line in lines if line.strip()]
    _failure(log, wording, trainer, rank, lines)
    return MadeLog(_written(log, draw), wording, rank, tuple(log.root), trainer.name)


EARLY = {
    "store_client_timeout", "store_client_refused", "port_in_use", "nccl_unique_id_timeout",
    "hostname_loopback", "preprocess_over_timeout", "invalid_ordinal", "torch_env", "image_pull",
    "slurm_start", "mpi_start",
    "bad_arguments", "data_missing", "dataset_column", "hub_gated", "hub_offline", "restart_no_progress",
    "ds_hf_mismatch", "fsdp_wrap_class", "ddp_model_differs", "rank0_not_master", "local_rank_mismatch",
}  # fmt: skip


def _filled(wording: Wording, draw: random.Random, rank: int, world: int) -> list[str]:
    peer = next(r for r in (*range(world), 1) if r != rank)
    values = {
        "<R>": str(rank), "<P>": str(peer), "<PID>": str(draw.randint(1000, 99999)),
        "<N>": str(draw.randint(100, 9999)), "<PORT>": str(draw.randint(20000, 60000)),
        "<HOST>": draw.choice(("gpu-a-01", "node03", "ip-10-0-3-7", "dgx12")),
    }  # fmt: skip
    done = []
    for line in wording.lines:
        for name, value in values.items():
            line = line.replace(name, value)
        done.append(line)
    return done


def _step(draw: random.Random, trainer: Trainer, step: int, total: int) -> list[str]:
    loss, norm = max(0.2, 2.2 - step * 0.03 + draw.random() * 0.1), 0.5 + draw.random()
    text = trainer.step.format(
        loss=loss,
        norm=norm,
        epoch=step / total,
        step=step,
        total=total,
        pct=step,
        sec=step % 60,
        min=step // 60,
    )
    return text.split("\n")


def _failure(log: _Log, wording: Wording, trainer: Trainer, rank: int, lines: list[str]) -> None:
    draw = log.draw
    how = wording.how
    if how in ("exc", "line", "lines", "agent"):
        at = next((i for i, line in enumerate(lines) if _TYPED.match(line)), None)
        who = -1 if how == "agent" else rank
        if at is None or how in ("line", "lines"):
            log.say(who, *lines)
        else:
            log.say(who, *lines[:at], "Traceback (most recent call last):", *trainer.frames, *lines[at:])
        _echoes(log, rank)
        _summary(log, rank, wording.exit, trainer)
    elif how == "killed":
        if "Fatal Python" in lines[0] or "Segfault" in lines[0] or "Process received" in lines[0]:
            log.say(rank, *lines)
        elif lines[0] != "killed-without-a-trace":
            (log.after if "slurm" in lines[0] or draw.random() < 0.5 else log.before).extend(
                (-1, line) for line in lines
            )
        else:
            log.root.clear()
        _echoes(log, rank)
        _summary(log, rank, wording.exit, trainer)
    elif how == "sched":
        place = log.before if draw.random() < 0.5 else log.after
        for r in range(log.world):
            if draw.random() < 0.4:
                log.say(r, *_KEYBOARD) if draw.random() < 0.3 else log.say(r, "Terminated")
        if draw.random() < 0.5:
            log.say(-1, *_agent_death(draw))
        place += [(-1, line) for line in lines]
    elif how == "watchdog":
        log.say(rank, *lines)
        for r in range(log.world):
            log.say(r, *_OPS_FAILED)
        _summary(log, rank, -6, trainer)
    elif how == "progress":
        for _ in range(draw.randint(3, 12)):
            log.before += [(0, line) for line in lines]
    else:
        log.after += [(-1, line) for line in lines]


_OPS_FAILED = (
    "[E ProcessGroupNCCL.cpp:489] Some NCCL operations have failed or timed out. Due to the asynchronous"
    " nature of"
    " CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
    "[E ProcessGroupNCCL.cpp:495] To avoid data inconsistency, we are taking the entire process down.",
)
_KEYBOARD = (
    "Traceback (most recent call last):",
    '  File "/work/train.py", line 90, in <module>',
    "    trainer.train()",
    "KeyboardInterrupt",
)


def _agent_death(draw: random.Random) -> list[str]:
    pid = draw.randint(100, 9999)
    return [
        f"W0304 01:22:33.551000 {pid} torch/distributed/elastic/agent/server/api.py:719] Received 15"
        " death signal,"
        " shutting down workers",
        f"W0304 01:22:33.551000 {pid} torch/distributed/elastic/multiprocessing/api.py:900] Sending process"
        f" {pid + 7} closing signal SIGTERM",
        "Traceback (most recent call last):",
        f'  File "{_SITE}/torch/distributed/elastic/multiprocessing/api.py", line 84, in _terminate_process',
        '    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)',
        f"torch.distributed.elastic.multiprocessing.api.SignalException: Process {pid} got signal: 15",
    ]


def _echoes(log: _Log, rank: int) -> None:
    draw = log.draw
    for r in range(log.world):
        if r == rank or draw.random() < 0.3:
            continue
        pick = draw.randrange(6)
        frames = TRAINERS[0].frames
        if pick == 0:
            log.say(
                r,
                f"[rank{r}]:[E1012 09:11:12.1 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective"
                f" operation timeout: WorkNCCL(SeqNum=91, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096,"
                " Timeout(ms)=600000) ran for 600021 milliseconds before timing out.",
                *_OPS_FAILED,
            )
        elif pick == 1:
            log.say(
                r,
                "Traceback (most recent call last):",
                *frames,
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
                " [10.0.0.4]:41231",
            )
        elif pick == 2:
            log.say(
                r,
                "Traceback (most recent call last):",
                *frames,
                "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/"
                "ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL"
                " version 2.21.5",
                "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"
                " prematurely.",
                "Last error:",
                "socketProgress: Connection closed by remote peer gpu-a-01<49122>",
            )
        elif pick == 3:
            log.say(
                r,
                f"[rank{r}]:[W1012 09:11:12.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3,"
                " addr=[localhost]:40122, remote=[localhost]:29500): Broken pipe",
                f"[rank{r}]:[W1012 09:11:13.1 ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0 Rank {r}]"
                " Failed to"
                ' check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early)',
            )
        elif pick == 4:
            log.say(
                r,
                "Traceback (most recent call last):",
                *frames,
                "torch.distributed.DistNetworkError: Connection reset by peer",
            )
        else:
            log.say(
                r,
                "terminate called after throwing an instance of 'c10::DistBackendError'",
                f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank {r}] NCCL watchdog thread terminated with"
                " exception: Connection reset by peer",
            )


def _summary(log: _Log, rank: int, code: int, trainer: Trainer) -> None:
    draw = log.draw
    pid = draw.randint(1000, 60000)
    pick = (
        "deepspeed" if trainer.name == "deepspeed" else draw.choice(("torchrun", "torchrun", "srun", "none"))
    )
    if pick == "torchrun":
        name = {-9: "Signal 9 (SIGKILL) received by PID", -11: "Signal 11 (SIGSEGV) received by PID"}.get(
            code
        )
        name = name or (f"Signal {-code} (SIGABRT) received by PID" if code < 0 else "")
        says = (
            f"{name} {pid}"
            if name
            else ("To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html")
        )
        lines = [
            f"W0304 01:22:33.551000 {pid} torch/distributed/elastic/multiprocessing/api.py:900] Sending"
            " process"
            f" {pid + r} closing signal SIGTERM"
            for r in range(log.world)
            if r != rank
        ]
        lines += [
            f"E0304 01:22:33.551000 {pid} torch/distributed/elastic/multiprocessing/api.py:874] failed"
            " (exitcode:"
            f" {code}) local_rank: {rank} (pid: {pid}) of binary: /usr/bin/python3",
            "Traceback (most recent call last):",
            '  File "/opt/venv/bin/torchrun", line 8, in <module>',
            "    sys.exit(main())",
            f'  File "{_SITE}/torch/distributed/launcher/api.py", line 277, in launch_agent',
            "    raise ChildFailedError(",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "=" * 60,
            "train.py FAILED",
            "-" * 60,
            "Failures:",
            "  <NO_OTHER_FAILURES>",
            "-" * 60,
            "Root Cause (first observed failure):",
            "[0]:",
            "  time      : 2025-03-04_01:22:33",
            "  host      : gpu-a-01",
            f"  rank      : {rank} (local_rank: {rank})",
            f"  exitcode  : {code} (pid: {pid})",
            "  error_file: <N/A>",
            f"  traceback : {says}",
            "=" * 60,
        ]
    elif pick == "srun":
        named = {-9: "Killed", -11: "Segmentation fault (core dumped)"}
        end = f"Exited with exit code {code}" if code >= 0 else named.get(code, "Aborted (core dumped)")
        lines = [
            f"srun: error: gpu-a-01: task {rank}: {end}",
            "srun: Terminating StepId=4711.0",
            "slurmstepd: error: *** STEP 4711.0 ON gpu-a-01 CANCELLED AT 2025-03-04T01:22:33 ***",
        ]
    elif pick == "deepspeed":
        lines = [
            f"[2025-03-04 01:22:33,{draw.randint(100, 999)}] [INFO] [launch.py:319:sigkill_handler] Killing"
            f" subprocess {pid + r}"
            for r in range(log.world)
        ]
        lines.append(
            "[2025-03-04 01:22:34,101] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u',"
            f" 'train.py', '--local_rank={rank}'] exits with return code = {code}"
        )
    else:
        lines = []
    log.after[:0] = [(-1, line) for line in lines]


def _written(log: _Log, draw: random.Random, *, cuts: bool = True) -> str:
    """Merge the streams, write prefixes, cut, colour."""
    merged, streams = list(log.before), {rank: list(lines) for rank, lines in log.streams.items()}
    together = draw.random() < 0.5  # whole streams, or mixed line by line
    while streams:
        rank = draw.choice(sorted(streams))
        count = len(streams[rank]) if together else draw.choice((1, 1, 2, 5))
        merged += [(rank, line) for line in streams[rank][:count]]
        streams[rank] = streams[rank][count:]
        if not streams[rank]:
            del streams[rank]
    merged += log.after
    kind = draw.choice(("", "", "rank", "srun", "kubectl", "stamp", "kube_stamp", "tag"))
    lines = []
    for number, (rank, line) in enumerate(merged):
        when = f"2025-03-04T01:{number // 60 % 60:02d}:{number % 60:02d}"
        who = max(rank, 0)
        prefix = {
            "": "",
            "rank": f"[rank{who}]: " if rank >= 0 and not line.startswith("[rank") else "",
            "srun": f"{who}: ",
            "kubectl": f"[pod/train-{who}/trainer] ",
            "stamp": f"{when}.123456Z ",
            "kube_stamp": f"{when}.123456789Z stdout F ",
            "tag": f"[1,{who}]<stderr>:",
        }[kind]
        lines.append(prefix + line)
    if cuts:
        lines = _cut(lines, draw, log.root)
    if draw.random() < 0.3:
        lines = [
            f"\x1b[3{draw.randrange(1, 8)}m{line}\x1b[0m" if draw.random() < 0.4 else line for line in lines
        ]
    if draw.random() < 0.3:
        bar = "\r".join(f" {p:2d}%|██   | {p}/100 [00:{p:02d}<01:00,  1.1it/s]" for p in range(1, 4))
        lines = [f"{bar}\r{line}" if draw.random() < 0.1 else line for line in lines]
    return "\n".join(lines) + ("\n" if draw.random() < 0.9 else "")


def _cut(lines: list[str], draw: random.Random, root: list[str]) -> list[str]:
    how = draw.choice(("no", "no", "head", "tail", "long"))
    if how == "head":
        return lines[draw.randint(0, len(lines) // 2) :]
    if how == "tail":
        return lines[: len(lines) - draw.randint(0, len(lines) // 3)]
    if how == "long":
        return [line[:180] for line in lines]
    return lines
