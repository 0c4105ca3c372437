"""Codes of what a look at the machine finds."""

from __future__ import annotations

from paceline.core.diagnostics import Code

DOCTOR_COMPILER = Code(
    "doctor.compiler",
    "There is no C compiler. torch.compile and Triton's kernels build small programs on first use; without a"
    " compiler they cannot, and a run that requests them ends at its start. Nothing else needs a compiler.",
)
DOCTOR_FILES = Code(
    "doctor.files",
    "The limit of open files is low for a job of many ranks: node 0 holds a connection to each.",
)
DOCTOR_HEADERS = Code(
    "doctor.headers",
    "Python's header files are missing, which Triton compiles its launchers against. Install the development"
    " package of this Python.",
)
DOCTOR_MEMLOCK = Code(
    "doctor.memlock",
    "The limit of locked memory is small, and this machine has InfiniBand: NCCL registers memory with it"
    " and fails.",
)
DOCTOR_NO_TORCH = Code(
    "doctor.no_torch",
    "torch is not installed in this environment. Plans can be made here, but nothing can be trained.",
)
DOCTOR_MISMATCH = Code(
    "doctor.mismatch",
    "Ranks of one group called different collectives at the same place: another operation, size or dtype."
    " They wait for each other, or read each other's bytes wrongly. A rank ran other code or had other data:"
    " a branch that depends on the rank, or a batch of another length.",
)
DOCTOR_NO_FLIGHTS = Code(
    "doctor.no_flights",
    "The run's ranks left no record of their last collectives, so there is nothing to compare. Ranks with"
    " NCCL leave one when a collective exceeds training.ddp_timeout.",
)
DOCTOR_P2P = Code(
    "doctor.p2p",
    "The cards cannot copy to each other directly, so their transfers go through the host's"
    " memory. That works,"
    " but more slowly; NCCL hangs if the driver offers direct copies that the cards do not have.",
)
DOCTOR_SHM = Code(
    "doctor.shm",
    "/dev/shm is small. NCCL moves data between the ranks of a node through it; docker gives a container"
    " 64 MB.",
)
DOCTOR_STUCK = Code(
    "doctor.stuck",
    "The run's ranks ended in a time-out, and their last collectives are not the same: those that are"
    " behind did"
    " something else, or were waiting for something.",
)
