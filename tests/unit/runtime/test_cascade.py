"""What a healthy rank sees of another's end, told from what a rank meets alone."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.runtime.failures.root_cause import CASCADE_WORDS, ROOT_WORDS, is_cascade, is_timeout

# Other people's failures, with what their texts stand for: root, cascade, or either of the two
CATALOGUE = [
    (
        "store_client_timeout",
        "root",
        "The client socket has timed out after 60s while trying to connect to (10.0.0.1, 1234).",
    ),
    (
        "store_client_refused",
        "either",
        "The client socket has failed to connect to any network address of (node0, 29500).",
    ),
    (
        "port_in_use",
        "root",
        (
            "The server socket has failed to listen on any local network address. port: 29500, useIpv6: 0,"
            " code: -98, name: EADDRINUSE, message: address already in"
        ),
    ),
    ("conn_reset", "cascade", "DistNetworkError: Connection reset by peer"),
    ("store_broken_pipe", "cascade", "sendBytes failed on SocketImpl(fd=79): Broken pipe"),
    (
        "nccl_unique_id_timeout",
        "root",
        (
            "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value"
            " store by key '0', but store->get('0') got error: Timeout"
        ),
    ),
    (
        "preprocess_over_timeout",
        "root",
        "Tokenizing Prompts (num_proc=64):  92% 328986/359152 [29:58<12:05] socket timed out after 1800000ms",
    ),
    (
        "hostname_loopback",
        "root",
        "Gloo connectFullMesh failed: connect ... Connection refused, remote=[127.0.1.1]:34567",
    ),
    ("invalid_ordinal", "root", "RuntimeError: CUDA error: invalid device ordinal"),
    (
        "local_rank_mismatch",
        "root",
        "Mismatch in local rank setting, args.local_rank=0 but env['LOCAL_RANK']=1.",
    ),
    (
        "pg_not_initialized",
        "root",
        (
            "ValueError: Default process group has not been initialized, please make sure to call"
            " init_process_group."
        ),
    ),
    (
        "torchrun_sigterm",
        "root",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1234 got signal: 15",
    ),
    (
        "slurm_oom",
        "confirmation",
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM"
            " Killed."
        ),
    ),
    (
        "slurm_node_fail",
        "root",
        "*** JOB 1 CANCELLED AT ... DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
    ),
    ("nccl_cuda_error", "root", "NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"),
    (
        "nccl_remote_error",
        "cascade",
        (
            "NCCL error: remote process exited or there was a network error ncclRemoteError: A call failed"
            " possibly due to a network error or a remote process exit"
        ),
    ),
    (
        "nccl_ib_completion",
        "either",
        (
            "NET/IB : Got completion from peer 11.214.147.122<39138> with error 12, opcode 0, len 0, vendor"
            " err 129"
        ),
    ),
    ("nccl_ib_async", "root", "NET/IB : mlx5_0:1 async fatal event: port error"),
    (
        "nccl_memlock",
        "root",
        "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ),
    ("nccl_no_interface", "root", "NCCL WARN Bootstrap : no socket interface found"),
    (
        "nccl_connect_fail",
        "root",
        (
            "NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host) errno"
            " 115(Operation now in progress)"
        ),
    ),
    (
        "nccl_version_mismatch",
        "root",
        "NCCL WARN Mismatched NCCL version detected : rank 0 version 22005 rank 8 version 21903",
    ),
    (
        "nccl_shm",
        "root",
        (
            "NCCL WARN Error: failed to extend /dev/shm/nccl-abc123 to 33030532 bytes, error: No space left"
            " on device (28)"
        ),
    ),
    (
        "nccl_watchdog_timeout",
        "either",
        (
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE,"
            " NumelIn=466119168, NumelOut=466119168, Timeout(ms)=6000"
        ),
    ),
    (
        "nccl_ops_failed",
        "cascade",
        (
            "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels,"
            " subsequent GPU operations might run on corrupted/incomp"
        ),
    ),
    (
        "c10d_mismatch",
        "root",
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective:"
            " CollectiveFingerPrint(SequenceNumber=3104, OpType=ALLREDUC"
        ),
    ),
    (
        "gloo_fullmesh",
        "root",
        (
            "RuntimeError: Gloo connectFullMesh failed with"
            " [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"
        ),
    ),
    (
        "gloo_recv_timeout",
        "either",
        (
            "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for"
            " recv operation to complete"
        ),
    ),
    (
        "nccl_rtx_p2p",
        "root",
        (
            "NotImplementedError: Using RTX 4000 series doesn't support faster communication broadband via"
            ' P2P or IB. Please set `NCCL_P2P_DISABLE="1"`'
        ),
    ),
    ("loss_zero", "root", "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.01}"),
    (
        "device_assert_index",
        "root",
        (
            "indexSelectLargeIndex: block: [58,0,0], thread: [24,0,0] Assertion `srcIndex < srcSelectDimSize`"
            " failed."
        ),
    ),
    ("cuda_ecc", "root", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("xid", "root", "NVRM: Xid (PCI:0000:03:00): 79, pid=123, GPU has fallen off the bus."),
    (
        "cuda_fork",
        "root",
        (
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing,"
            " you must use the 'spawn' start method"
        ),
    ),
    ("worker_killed", "root", "RuntimeError: DataLoader worker (pid 123) is killed by signal: Killed."),
    ("fd_limit", "root", "RuntimeError: received 0 items of ancdata"),
    (
        "shm_open",
        "root",
        "RuntimeError: unable to open shared memory object </torch_123_456> in read-write mode",
    ),
    (
        "bf16_unsupported",
        "root",
        "ValueError: Your setup doesn't support bf16/gpu. You need Ampere+ GPU with cuda>=11.0.",
    ),
    (
        "child_failed",
        "cascade",
        (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: Root Cause (first observed"
            " failure): [0]:"
        ),
    ),
]


@pytest.mark.parametrize(("name", "role", "text"), CATALOGUE)
@pytest.mark.parametrize("kind", [RuntimeError, dist.DistBackendError])
def test_a_root_is_no_echo_and_an_echo_no_root(
    name: str, role: str, text: str, kind: type[Exception]
) -> None:
    if role == "root":
        assert not is_cascade(kind(text))
    elif role == "cascade":
        assert is_cascade(kind(text))


def test_nccl_s_own_system_error_is_a_root() -> None:
    text = (
        "NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled system error (run with NCCL_DEBUG=INFO for"
        " details), NCCL version 2.27.5 ncclSystemError: System call (e.g. socket, malloc) or external"
        " library call failed or device error."
    )
    assert not is_cascade(dist.DistBackendError(text))


def test_every_word_decides_something() -> None:
    """A word without a case here could be wrong unseen."""
    texts = [text.lower() for _, _, text in CATALOGUE] + [
        "[gloo/transport/tcp/pair.cc:537] read error [127.0.0.1]:3730: connection closed by peer",
        "failed to recv, got 0 bytes. connection was likely closed.",
        "recvvalue failed on socketimpl(fd=3)",
        "wait timeout after 20000ms, keys: /x",
        "socket timeout",
        "socket closed",
        "remote peer",
        "peer closed",
        "nccl communicator was aborted on rank 0",
        "timed out waiting 6000ms for recv operation to complete",
        "ncclsystemerror: system call",
        "got error while trying to connect to",
    ]
    assert [word for word in (*CASCADE_WORDS, *ROOT_WORDS) if not any(word in text for text in texts)] == []


def raised_in(file: str) -> Exception:
    try:
        exec(compile("raise BrokenPipeError(32, 'Broken pipe')", f"/site/{file}", "exec"))  # noqa: S102
    except BrokenPipeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "cascade", "timeout"),
    [
        (
            RuntimeError(
                "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:3730: Connection reset by peer"
            ),
            True,
            False,
        ),
        (RuntimeError("Timed out waiting 6000ms for recv operation to complete"), True, True),
        (dist.DistStoreError("wait timeout after 20000ms, keys: /x"), True, True),
        (ConnectionResetError(), False, False),  # of a pipe, or a server of the user's
        (raised_in("paceline/runtime/process_group/signed_store.py"), True, False),
        (raised_in("torch/distributed/rendezvous.py"), True, False),
        (raised_in("rich/console.py"), False, False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False, False),
        (ValueError("connection reset by peer"), False, False),
        (PacelineError(Diagnostic("data.row", "the text 'broken pipe' in row 3")), False, False),
    ],
)
def test_an_echo_is_told_from_a_cause(error: Exception, cascade: bool, timeout: bool) -> None:
    assert (is_cascade(error), is_timeout(error)) == (cascade, timeout)
