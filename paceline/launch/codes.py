"""Codes of launchers and of what is looked at before a start."""

from __future__ import annotations

from paceline.core.diagnostics import Code

PROGRAM_SYSTEM_REFUSED = Code(
    "program.system_refused",
    "The operating system refused a read or write: the disk is full or out of inodes, over its"
    " quota, read-only, or permission is denied. The message names the file; nothing half-written"
    " counts as complete.",
)

DATA_OFFLINE = Code(
    "data.offline",
    "A tokenizer or a data set is on the hub, not in this machine's cache, and HF_HUB_OFFLINE"
    " forbids downloading it. Download it first, or name a folder.",
)
DATA_CACHE_WRITE = Code(
    "data.cache_write",
    "The prepared data cannot be written, or cannot be read back. Set data.cache_dir to a working"
    " folder with free space.",
)

MODEL_REVISION_UNREAD = Code(
    "model.revision_unread",
    "model.revision names a branch, tag or commit of the hub, but this model is a local folder or"
    " created from scratch, so it has no effect. Remove it.",
)

TRIAL_UNFINISHED = Code(
    "trial.unfinished",
    "The process that runs the checks before a start was ended by a signal or by its time limit."
    " The start continues without it; the run's processes may have the same problem.",
)

LAUNCH_OP_LOCK = Code(
    "launch.op_lock",
    "A build of DeepSpeed's async_io op (NVMe offload) was killed and left its lock, and every"
    " later start would wait for it forever. Delete the file in the message.",
)
LAUNCH_COUNT = Code(
    "launch.count",
    "The numbers of processes per node and of nodes must be at least 1. Correct --nproc and --nnodes.",
)
LAUNCH_DEEPSPEED_LOG_LEVEL = Code(
    "launch.deepspeed_log_level",
    "DEEPSPEED_LOG_LEVEL is set; the message says how it was used. In the YAML the key is"
    " training.log_level.",
)
LAUNCH_DEEPSPEED_TIMEOUT = Code(
    "launch.deepspeed_timeout",
    "DEEPSPEED_TIMEOUT is in minutes and is read as training.ddp_timeout, in seconds, because"
    " Paceline opens the process group. It must be a whole number of 1 or more; better set the"
    " seconds in the YAML.",
)
LAUNCH_ENV_PASSED = Code(
    "launch.env_passed",
    "An environment variable changes the behaviour of a library and is passed on to the ranks"
    " unchanged; the message says what it does. Unset it if this is not intended.",
)
LAUNCH_HOSTFILE = Code(
    "launch.hostfile",
    "DeepSpeed's launcher needs a hostfile for several nodes, also with --no_ssh. Write one line"
    " per node with its name and slots, and pass --hostfile on every node.",
)
LAUNCH_LOOPBACK = Code(
    "launch.loopback",
    "The address of node 0 is reachable only from this machine. That is correct if all nodes are"
    " started here; otherwise each would wait for itself. Set --master-addr to a name that the"
    " other nodes can reach.",
)
LAUNCH_MASTER_ADDR = Code(
    "launch.master_addr",
    "With several nodes, all of them need the address of node 0, but none is given, or the one"
    " given resolves to the machine that reads it (see /etc/hosts). Set --master-addr to a name or"
    " address that every node can reach.",
)
LAUNCH_NCCL_TIMEOUT = Code(
    "launch.nccl_timeout",
    "NCCL does not read a variable NCCL_TIMEOUT; its seconds are read as training.ddp_timeout. It"
    " must be a whole number of 1 or more; better set the key in the YAML.",
)
LAUNCH_NODE_RANK = Code(
    "launch.node_rank",
    "Node ranks go from 0 to one less than the number of nodes. Correct --node_rank, or --nnodes.",
)
LAUNCH_ONE_PROCESS = Code(
    "launch.one_process",
    "accelerate launch started one process, although more were requested: this is what it does with"
    " --cpu. Use torchrun, or --multi_gpu with --num_processes, which also works on CPUs.",
)
LAUNCH_PORT_IN_USE = Code(
    "launch.port_in_use",
    "Another program listens on the port where the ranks would connect. Use another port, the same"
    " on every node; a free one is shown.",
)
LAUNCH_PORT_RANGE = Code("launch.port_range", "A TCP port must be a number from 1 to 65535.")
LAUNCH_RANK_ALONE = Code(
    "launch.rank_alone",
    "The environment shows that this is one process of several but not how many, so each would"
    " train alone in the same folder. Export RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and"
    " MASTER_PORT in each process, or start with torchrun or srun.",
)
LAUNCH_RENDEZVOUS = Code(
    "launch.rendezvous",
    "MASTER_ADDR, and MASTER_PORT if it is set, are used as the address where the nodes connect."
    " --master-addr and --master-port set it on the command line.",
)
LAUNCH_START = Code(
    "launch.start",
    "A process could not be started: the program is missing or is not executable. The complete"
    " command is shown.",
)
LAUNCH_STORE_SECRET = Code(
    "launch.store_secret",
    "Messages between the ranks are signed with a secret, but the one given cannot be used: it is"
    " not a file, is readable for everybody, or is too short. Create one with openssl rand -hex 32"
    " > FILE and chmod 600 FILE.",
)
LAUNCH_STORE_UNSIGNED = Code(
    "launch.store_unsigned",
    "Ranks on several nodes, or started by another program, have no common secret, so anyone who"
    " can reach their port can send messages as a rank and end the run. Set a secret on every node"
    " with PACELINE_STORE_SECRET_FILE or PACELINE_STORE_SECRET. Several nodes do not start without,"
    " unless launch.allow_unsigned_store is true.",
)
LAUNCH_TORCH_DEBUG = Code(
    "launch.torch_debug",
    "torch refuses this value of TORCH_DISTRIBUTED_DEBUG when it is imported. Use OFF, INFO or DETAIL.",
)
LAUNCH_NOT_INSTALLED = Code(
    "launch.not_installed",
    "The program given to --launcher is not installed. Install it as shown, or let Paceline start"
    " the ranks (--launcher spawn).",
)
LAUNCH_ONE_NODE = Code(
    "launch.one_node",
    "mpirun, accelerate and deepspeed have their own ways to reach several nodes (a host list, ssh,"
    " a hostfile): start them with their own command as shown, and Paceline's ranks join. On one"
    " node --launcher starts them.",
)
LAUNCH_UNKNOWN = Code("launch.unknown", "There is no launcher of this name. The known ones are listed.")
LAUNCH_WORKER_KILLED = Code(
    "launch.worker_killed",
    "A rank was ended by a signal, and the run exits with 128 plus its number. The memory cgroup's"
    " counter shows whether SIGKILL came from the kernel because memory ran out; SIGSEGV, SIGABRT,"
    " SIGBUS and SIGFPE come from a library's native code, and the stack of each thread is in the"
    " rank's log. events/exits.json records how every rank ended.",
)
LAUNCH_OUT_OF_MEMORY = Code(
    "launch.out_of_memory",
    "The kernel's out-of-memory killer ended a rank: the process's memory cgroup counted it"
    " (oom_kill). The run exits with 137. Use a smaller batch or shorter rows, turn on gradient"
    " checkpointing, or give the job more memory.",
)
LAUNCH_RANK_FAILED = Code(
    "launch.rank_failed",
    "A rank ended with an error and could not inform the others, so the launcher informed and ended"
    " them. See that rank's log.",
)
LAUNCH_RANK_LEFT = Code(
    "launch.rank_left",
    "A rank's process exited in the middle of the run without reporting an end or an error: a function of"
    " yours or a library called exit or os._exit, whatever the code. The run has failed, also where that"
    " code was 0. Raise an exception instead; a callback stops a run with should_stop.",
)
LAUNCH_STOPPED_EARLY = Code(
    "launch.stopped_early",
    "The run was stopped from outside before it could save: while it was starting, or at once by a second"
    " Ctrl-C. What earlier saves hold is kept; --resume auto goes on from there.",
)
LAUNCH_OUTPUT_LOST = Code(
    "launch.output_lost",
    "Nothing can be written to standard output any more: its reader (head, less, a terminal) has exited, or"
    " its disk is full. The run goes on; logs/training.log has every line.",
)
LAUNCH_RANK_GONE = Code(
    "launch.rank_gone",
    "With torchrun's agent, a rank's process disappeared without reporting an error: the launcher"
    " informed the others. The agent's output shows the signal.",
)
LAUNCH_EXITS_LOST = Code(
    "launch.exits_lost",
    "How the ranks ended could not be written to the run folder (events/exits.json, the killed"
    " rank's log, result.json): the system refused it. Only the console output is available.",
)

RUN_EXISTS = Code(
    "run.exists",
    "The output directory already contains a run, and nothing is overwritten silently. Resume it"
    " with training.resume_from_checkpoint: latest, set another training.experiment_name, or rename"
    " the old one with training.overwrite_output_dir: true.",
)
RUN_IN_USE = Code(
    "run.in_use",
    "Another Paceline process is currently writing to this run directory. Wait for it, stop it, or"
    " set another training.output_dir or training.experiment_name.",
)
RUN_NOT_A_DIRECTORY = Code(
    "run.not_a_directory", "training.output_dir is the path of a file. Name a directory."
)
RUN_NOT_WRITABLE = Code(
    "run.not_writable",
    "The output directory cannot be created or written. Name a directory that you can write to, or"
    " free disk space.",
)
RUN_SET_ASIDE = Code(
    "run.set_aside",
    "The previous run of this directory was renamed, as training.overwrite_output_dir requests;"
    " nothing was deleted.",
)
RUN_OPEN = Code(
    "run.open",
    "The run's folder belongs to another user, or is in a place where every user can rename and"
    " replace files: checkpoints there may not be what was saved.",
)
