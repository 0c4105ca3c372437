"""Codes of a process of a run: its environment, its group, its device."""

from __future__ import annotations

from paceline.core.diagnostics import Code

RUNTIME_BACKEND = Code(
    "runtime.backend",
    "NCCL moves data of CUDA devices only, and this run computes elsewhere. Set ddp_backend: gloo.",
)
RUNTIME_DEVICE = Code(
    "runtime.device",
    "The device that the plan names is not there for this process: torch is built for the CPU, sees no CUDA"
    " device, or fewer than processes were started. Start fewer processes, install a torch with CUDA, or set"
    " use_cpu: true.",
)
RUNTIME_ENV_LOCAL_RANK = Code(
    "runtime.env_local_rank",
    "The local rank is the index of a process on its node, from 0 to one less than the processes there."
    " LOCAL_RANK or --local-rank is outside that range, or the two differ.",
)
RUNTIME_ENV_MISSING = Code(
    "runtime.env_missing",
    "Of the variables that belong together (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) some are"
    " set and some are not. Set all of them, or none.",
)
RUNTIME_ENV_NUMBER = Code(
    "runtime.env_number",
    "A variable of the launcher is not the number that it has to be. Correct it in the command that starts"
    " the ranks.",
)
RUNTIME_ENV_PORT = Code(
    "runtime.env_port", "MASTER_PORT is not a TCP port. Set a number from 1 to 65535, for instance 29500."
)
RUNTIME_ENV_RANK = Code(
    "runtime.env_rank",
    "RANK lies outside 0 to WORLD_SIZE - 1. Start all ranks with the same WORLD_SIZE and each with a rank of"
    " its own.",
)
RUNTIME_ENV_TWO_LAUNCHERS = Code(
    "runtime.env_two_launchers",
    "RANK and WORLD_SIZE were exported by hand or by one launcher, and another one around says something"
    " else. Unset RANK, WORLD_SIZE and LOCAL_RANK before the command.",
)
RUNTIME_ENV_UNEVEN = Code(
    "runtime.env_uneven",
    "The nodes run different numbers of processes, and a mesh needs as many on each. Ask the job manager for"
    " the same number of tasks a node.",
)
RUNTIME_GROUP = Code(
    "runtime.group",
    "The ranks met, but one cannot connect to the others over the backend. Usually it takes a network"
    " interface that the nodes do not share: name the right one in the variable that is shown.",
)
RUNTIME_JSON_LIMIT = Code(
    "runtime.json_limit",
    "A rank wants to send the others more text at once than is allowed. Send less, or in pieces.",
)
RUNTIME_PORT_IN_USE = Code(
    "runtime.port_in_use",
    "The port where the ranks should meet is taken on node 0. Take another by launch.master_port or"
    " --master_port, or end the other run.",
)
RUNTIME_RANKS_MISSING = Code(
    "runtime.ranks_missing",
    "Not every rank came to the meeting point in time; those that are missing are named. Look at their logs."
    " training.ddp_timeout sets how long the others wait.",
)
RUNTIME_RENDEZVOUS = Code(
    "runtime.rendezvous",
    "The meeting point at MASTER_ADDR and MASTER_PORT cannot be reached. Give an address of node 0 that all"
    " nodes reach and a port that no firewall closes.",
)
RUNTIME_RANK_BACK = Code(
    "runtime.rank_back", "A rank that had gone silent gives signs of life again. The run goes on."
)
RUNTIME_RANK_QUIET = Code(
    "runtime.rank_quiet",
    "A rank has given no sign of life for half a minute. Its process may be stopped, its machine frozen or"
    " the network cut. If the silence lasts as long as training.ddp_timeout, the run ends on every rank (exit"
    " code 77).",
)
RUNTIME_RANK_SILENT = Code(
    "runtime.rank_silent",
    "A rank gave no sign of life for as long as training.ddp_timeout allows, and the run ended on every rank"
    " that still runs (exit code 77). What could be seen of the silent process is told; look at its machine.",
)
RUNTIME_RANK_SLOW = Code(
    "runtime.rank_slow",
    "A rank's process stood still for most of the time lately: stopped again and again, or starved of CPU."
    " Every step of the others waits for it.",
)
RUNTIME_STORE_FORGED = Code(
    "runtime.store_forged",
    "Something else than a rank of this run writes into the ranks' store. Such values are ignored. Find out"
    " who reaches that port, and let the ranks meet in a network of their own.",
)
RUNTIME_STORE_LOST = Code(
    "runtime.store_lost",
    "The process that hosts the ranks' meeting point is gone without having said why. Look at its output and"
    " at the kernel's log of its node; want of memory is the commonest cause.",
)
RUNTIME_STORE_OPEN = Code(
    "runtime.store_open",
    "The address where the ranks meet belongs to no network interface of rank 0's machine, so its port had to"
    " be opened on all of them. Give an address of rank 0's own where there is one.",
)
RUNTIME_STORE_SILENT = Code(
    "runtime.store_silent",
    "The process that hosts the ranks' meeting point does not answer, though nothing says that it is gone: it"
    " is stopped, its machine stands still, or the network to it is cut. After training.ddp_timeout the run"
    " ends (exit code 77).",
)
RUNTIME_STORE_SECRET = Code(
    "runtime.store_secret",
    "Two ranks have different secrets for what they tell each other, or one has none. Name the same one on"
    " every node.",
)
