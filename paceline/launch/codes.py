"""Codes of launchers and of what is looked at before a start."""

from __future__ import annotations

from paceline.core.diagnostics import Code

PROGRAM_SYSTEM_REFUSED = Code(
    "program.system_refused",
    "The operating system refused what the command was to write or read: the disk is full or out of inodes,"
    " over its quota, read-only, or there is no permission. The file is named; nothing half-written counts as"
    " done.",
)

DATA_OFFLINE = Code(
    "data.offline",
    "A tokenizer or a data set is on the hub, not in this machine's cache, and HF_HUB_OFFLINE forbids to"
    " fetch it. Fetch it before, or name a folder.",
)
DATA_CACHE_WRITE = Code(
    "data.cache_write",
    "The prepared data cannot be written, or what was written cannot be read back. Set data.cache_dir to a"
    " sound folder with room.",
)

MODEL_REVISION_UNREAD = Code(
    "model.revision_unread",
    "model.revision names a branch, tag or commit of the hub, and this model is a folder or made from"
    " scratch. It sets nothing there. Remove it.",
)

TRIAL_UNFINISHED = Code(
    "trial.unfinished",
    "The process that looks and tries before a start was ended by a signal or by its time limit. It goes on"
    " without; the run's processes may meet the same.",
)

LAUNCH_OP_LOCK = Code(
    "launch.op_lock",
    "A build of DeepSpeed's async_io op (NVMe offload) was killed and left its lock, for which every later"
    " start would wait without end. Delete the file that is named.",
)
LAUNCH_COUNT = Code(
    "launch.count", "Processes a node and nodes are counted from 1. Correct --nproc and --nnodes."
)
LAUNCH_DEEPSPEED_LOG_LEVEL = Code(
    "launch.deepspeed_log_level",
    "DEEPSPEED_LOG_LEVEL was read, and the message says what became of it. In the YAML the key is"
    " training.log_level.",
)
LAUNCH_DEEPSPEED_TIMEOUT = Code(
    "launch.deepspeed_timeout",
    "DEEPSPEED_TIMEOUT counts minutes and is taken as training.ddp_timeout, in seconds, because Paceline"
    " opens the process group. It is a whole number from 1; write the seconds in the YAML instead.",
)
LAUNCH_ENV_PASSED = Code(
    "launch.env_passed",
    "A variable of the environment changes how a library works and is passed on to the ranks as it is; the"
    " message says what it does. Unset it if that was not meant.",
)
LAUNCH_HOSTFILE = Code(
    "launch.hostfile",
    "DeepSpeed's launcher knows of several nodes by a hostfile alone, with --no_ssh too. Write one line a"
    " node with its name and slots, and give --hostfile on every node.",
)
LAUNCH_LOOPBACK = Code(
    "launch.loopback",
    "The address of node 0 is one that means this machine alone. That is right when all nodes are started"
    " here; otherwise each would wait for itself. Give --master-addr a name that the other nodes reach.",
)
LAUNCH_MASTER_ADDR = Code(
    "launch.master_addr",
    "With several nodes the address of node 0 has to be known to all of them, and none is given, or the one"
    " given stands for the machine that reads it (see /etc/hosts). Give --master-addr a name or address that"
    " every node reaches.",
)
LAUNCH_NCCL_TIMEOUT = Code(
    "launch.nccl_timeout",
    "NCCL reads no variable NCCL_TIMEOUT; its seconds are taken as training.ddp_timeout. It is a whole number"
    " from 1; the key in the YAML is the better place.",
)
LAUNCH_NODE_RANK = Code(
    "launch.node_rank",
    "Nodes are counted from 0 to one less than their number. Correct --node_rank, or --nnodes.",
)
LAUNCH_ONE_PROCESS = Code(
    "launch.one_process",
    "accelerate launch starts one process here, although more were asked for: that is what it does with"
    " --cpu. Use torchrun, or --multi_gpu with --num_processes, which it takes on CPUs too.",
)
LAUNCH_PORT_IN_USE = Code(
    "launch.port_in_use",
    "Another program listens on the port where the ranks should meet. Take another one, on every node the"
    " same; a free one is named.",
)
LAUNCH_PORT_RANGE = Code("launch.port_range", "A TCP port is a number from 1 to 65535.")
LAUNCH_RANK_ALONE = Code(
    "launch.rank_alone",
    "The environment says that this is one process of several but not of how many, so each would train alone"
    " in the same folder. Export RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each process,"
    " or start by torchrun or srun.",
)
LAUNCH_RENDEZVOUS = Code(
    "launch.rendezvous",
    "MASTER_ADDR, and MASTER_PORT where it is set, are taken as the place where the nodes meet. --master-addr"
    " and --master-port say it on the command line.",
)
LAUNCH_START = Code(
    "launch.start",
    "A process could not be started: the program is missing or may not be run. The whole command is shown.",
)
LAUNCH_STORE_SECRET = Code(
    "launch.store_secret",
    "What the ranks tell each other is signed with a secret, and the one that was named cannot be used: no"
    " file, readable for everybody, or too short. Make one with openssl rand -hex 32 > FILE and chmod 600"
    " FILE.",
)
LAUNCH_STORE_UNSIGNED = Code(
    "launch.store_unsigned",
    "Ranks on several nodes, or started by another program, have no secret in common, so whoever reaches the"
    " port where they meet can speak for a rank and end the run. Name a secret on every node by"
    " PACELINE_STORE_SECRET_FILE or PACELINE_STORE_SECRET.",
)
LAUNCH_TORCH_DEBUG = Code(
    "launch.torch_debug",
    "torch refuses this value of TORCH_DISTRIBUTED_DEBUG when it is imported. Use OFF, INFO or DETAIL.",
)
LAUNCH_NOT_INSTALLED = Code(
    "launch.not_installed",
    "The program that --launcher names is not installed here. Install it as shown, or let Paceline start the"
    " ranks (--launcher spawn).",
)
LAUNCH_ONE_NODE = Code(
    "launch.one_node",
    "mpirun, accelerate and deepspeed reach several nodes by means of their own (a host list, ssh, a"
    " hostfile): start them by their own command as shown, which Paceline's ranks join. On one node"
    " --launcher starts them.",
)
LAUNCH_UNKNOWN = Code("launch.unknown", "No launcher has this name. The known ones are listed.")
LAUNCH_WORKER_KILLED = Code(
    "launch.worker_killed",
    "A rank was ended by a signal, and the run answers 128 and its number. Whether SIGKILL came from the"
    " kernel for want of memory is read from the count of the memory cgroup; SIGSEGV, SIGABRT, SIGBUS and"
    " SIGFPE come from a library's native code, and the stack of each thread is in the rank's log."
    " events/exits.json has every rank's end.",
)
LAUNCH_OUT_OF_MEMORY = Code(
    "launch.out_of_memory",
    "The kernel's out-of-memory killer has ended a rank: the memory cgroup of the process has counted it"
    " (oom_kill). The run answers 137. Take a smaller batch or shorter rows, turn on gradient checkpointing,"
    " or give the job more memory.",
)
LAUNCH_RANK_FAILED = Code(
    "launch.rank_failed",
    "A rank ended with an error of its own and the others had not heard of it: the launcher has told them and"
    " ended them. See that rank's log.",
)
LAUNCH_RANK_GONE = Code(
    "launch.rank_gone",
    "Behind torchrun's agent a rank's process went away without a word: the launcher has told the others. The"
    " agent says by which signal.",
)
LAUNCH_EXITS_LOST = Code(
    "launch.exits_lost",
    "How the ranks ended could not be written into the run folder (events/exits.json, the killed rank's log,"
    " result.json): the system refused it. What stands on the console is all that is known.",
)

RUN_EXISTS = Code(
    "run.exists",
    "The output directory already holds a run, and nothing is overwritten silently. Go on with it by"
    " training.resume_from_checkpoint: latest, take another training.experiment_name, or set the old one"
    " aside by training.overwrite_output_dir: true.",
)
RUN_IN_USE = Code(
    "run.in_use",
    "Another Paceline process writes this run directory right now. Wait for it, stop it, or set another"
    " training.output_dir or training.experiment_name.",
)
RUN_NOT_A_DIRECTORY = Code(
    "run.not_a_directory", "training.output_dir is the path of a file. Name a directory."
)
RUN_NOT_WRITABLE = Code(
    "run.not_writable",
    "The output directory cannot be made or written. Name a directory that you may write to, or free space.",
)
RUN_SET_ASIDE = Code(
    "run.set_aside",
    "The earlier run of this directory was renamed, as training.overwrite_output_dir asks; nothing was"
    " deleted.",
)
RUN_OPEN = Code(
    "run.open",
    "The run's folder belongs to another user, or lies where everybody may rename and replace files:"
    " checkpoints there may not be what was saved.",
)
