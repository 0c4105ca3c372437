"""Codes of a process of a run: its environment, its group, its device."""

from __future__ import annotations

from paceline.core.diagnostics import Code

RUNTIME_BACKEND = Code(
    "runtime.backend",
    "NCCL transfers data of CUDA devices only, but this run uses another device. Set ddp_backend: gloo.",
)
RUNTIME_DEVICE = Code(
    "runtime.device",
    "The device in the plan is not available to this process: torch is a CPU build, sees no CUDA"
    " device, or sees fewer than processes were started. Start fewer processes, install a torch"
    " with CUDA, or set use_cpu: true.",
)
RUNTIME_DEVICE_SHARED = Code(
    "runtime.device_shared",
    "Two ranks of a node took the same card, which NCCL does not allow. A job manager showed both the same"
    " one:"
    " request one card per task, or all cards in every task.",
)
RUNTIME_DOCSTRINGS = Code(
    "runtime.docstrings",
    "Python runs with -OO (PYTHONOPTIMIZE=2), which removes docstrings, but Transformers makes its models"
    " with theirs and cannot load one without. Use -O (PYTHONOPTIMIZE=1), or neither.",
)
RUNTIME_FIRST_REDUCE = Code(
    "runtime.first_reduce",
    "Before the first step every axis of the mesh sums a number over its ranks, with a limit of one minute."
    " Either a"
    " rank that is named did not arrive, or all arrived but no data is transferred. The NCCL variables"
    " that are"
    " shown select another path.",
)
RUNTIME_LINK_SLOW = Code(
    "runtime.link_slow",
    "In the first all-reduce a group of ranks was far slower than the others, or a rank came late. Every"
    " step waits"
    " for the slowest.",
)
RUNTIME_RANKS_DIFFER = Code(
    "runtime.ranks_differ",
    "Ranks that train together have different kinds of devices, or different releases of torch, NCCL or"
    " CUDA. They"
    " would wait for each other forever, so no process group is created. Start all in the same environment.",
)
RUNTIME_RANKS_UNEQUAL = Code(
    "runtime.ranks_unequal",
    "The ranks' cards or drivers are not the same. That works; the slowest and smallest card sets the limits"
    " for all.",
)
RUNTIME_RANK_DIED = Code(
    "runtime.rank_died",
    "A rank's process or its machine ended without a message: its connection to rank 0 was cut. See"
    " that"
    " rank's log, its launcher's output and the kernel's log of its node (dmesg: Out of memory, Xid).",
)
RUNTIME_NO_LINE = Code(
    "runtime.no_line",
    "A rank could not connect to rank 0 beside the store, so that its death would be noticed only by"
    " missing signs of"
    " life, after training.ddp_timeout. A firewall between the nodes allows too few ports.",
)
RUNTIME_RANK_LATE = Code(
    "runtime.rank_late",
    "All ranks are alive, but the others have waited for one of them for as long as is allowed:"
    " training.start_timeout before the first step, training.step_timeout in a step,"
    " training.ddp_timeout between steps. The message names the rank, what it was doing and the key"
    " (exit code 77).",
)
RUNTIME_COLLECTIVE_STUCK = Code(
    "runtime.collective_stuck",
    "All ranks are alive, but all have waited in collectives for as long as training.step_timeout,"
    " start_timeout or ddp_timeout allows: they are in different ones. events/flight_RANK.json has each"
    " rank's last collectives.",
)
RUNTIME_ENV_LOCAL_RANK = Code(
    "runtime.env_local_rank",
    "The local rank is the index of a process on its node, from 0 to one less than the number of"
    " processes there. LOCAL_RANK or --local-rank is outside of that range, or the two differ.",
)
RUNTIME_ENV_MISSING = Code(
    "runtime.env_missing",
    "Of the variables that belong together (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,"
    " MASTER_PORT), only some are set. Set all of them, or none.",
)
RUNTIME_ENV_NUMBER = Code(
    "runtime.env_number",
    "A variable of the launcher is not a number as required. Correct it in the command that starts"
    " the ranks.",
)
RUNTIME_ENV_PORT = Code(
    "runtime.env_port", "MASTER_PORT is not a TCP port. Set a number from 1 to 65535, for example 29500."
)
RUNTIME_ENV_RANK = Code(
    "runtime.env_rank",
    "RANK is outside of 0 to WORLD_SIZE - 1. Start all ranks with the same WORLD_SIZE, and each"
    " with its own rank.",
)
RUNTIME_ENV_TWO_LAUNCHERS = Code(
    "runtime.env_two_launchers",
    "RANK and WORLD_SIZE, exported by hand or by one launcher, differ from the values of another"
    " launcher around it. Unset RANK, WORLD_SIZE and LOCAL_RANK before the command.",
)
RUNTIME_ENV_UNEVEN = Code(
    "runtime.env_uneven",
    "The nodes run different numbers of processes, but a mesh needs the same number on each."
    " Request the same number of tasks per node from the job manager.",
)
RUNTIME_GROUP = Code(
    "runtime.group",
    "The ranks found each other, but one cannot connect to the others over the backend. Usually it"
    " uses a network interface that the nodes do not share: set the variable in the message to the"
    " right one.",
)
RUNTIME_JSON_LIMIT = Code(
    "runtime.json_limit",
    "A rank tries to send more text to the others at once than is allowed. Send less, or in pieces.",
)
RUNTIME_PORT_IN_USE = Code(
    "runtime.port_in_use",
    "The port where the ranks would connect is in use on node 0. Use another with"
    " launch.master_port or --master_port, or end the other run.",
)
RUNTIME_RANKS_MISSING = Code(
    "runtime.ranks_missing",
    "Not every rank connected in time; the message lists the missing ones. See their logs."
    " training.start_timeout sets how long the others wait.",
)
RUNTIME_RENDEZVOUS = Code(
    "runtime.rendezvous",
    "The address MASTER_ADDR:MASTER_PORT cannot be reached. Give an address of node 0 that all"
    " nodes can reach, and a port that no firewall closes.",
)
RUNTIME_RANK_BACK = Code(
    "runtime.rank_back", "A rank that had been silent shows signs of life again. The run continues."
)
RUNTIME_RANK_QUIET = Code(
    "runtime.rank_quiet",
    "A rank has shown no sign of life for half a minute. Its process may be stopped, its machine"
    " frozen or the network cut. If the silence lasts as long as the message says (training.start_timeout,"
    " step_timeout or ddp_timeout, at least 10 s), the run ends on every rank (exit code 77).",
)
RUNTIME_RANK_SILENT = Code(
    "runtime.rank_silent",
    "A rank showed no sign of life for as long as training.start_timeout (before the first step),"
    " step_timeout (in a step) or ddp_timeout (between steps) allows, and the run ended on"
    " every rank that still runs (exit code 77). The message contains what is known about the"
    " silent process; check its machine.",
)
RUNTIME_RANK_SLOW = Code(
    "runtime.rank_slow",
    "A rank's process did not run for most of the recent time: it was stopped repeatedly, or got"
    " too little CPU time. Every step of the others waits for it.",
)
RUNTIME_STORE_FORGED = Code(
    "runtime.store_forged",
    "Something other than a rank of this run writes to the ranks' store. Such values are ignored."
    " Find out what can reach that port, and use a private network for the ranks.",
)
RUNTIME_STORE_LOST = Code(
    "runtime.store_lost",
    "The process that hosts the ranks' store disappeared without reporting a reason. See its output"
    " and the kernel log of its node; the most common cause is lack of memory.",
)
RUNTIME_STORE_OPEN = Code(
    "runtime.store_open",
    "The address where the ranks connect belongs to no network interface of rank 0's machine, so"
    " its port had to be opened on all interfaces. Give an address of rank 0's machine if there is"
    " one.",
)
RUNTIME_STORE_SILENT = Code(
    "runtime.store_silent",
    "The process that hosts the ranks' store does not answer, although there is no sign that it"
    " ended: it is stopped, its machine is frozen, or the network to it is cut. After"
    " as long as ranks wait for each other (training.start_timeout, step_timeout, ddp_timeout) the run ends"
    " (exit code 77).",
)
RUNTIME_STORE_SECRET = Code(
    "runtime.store_secret",
    "Two ranks have different secrets for their messages, or one has none. Set the same secret on"
    " every node.",
)
