"""Codes of starting processes and of ranks that meet: launchers, environment, output directory, process group."""

from __future__ import annotations

_STARTING = {
    "launch.count": "Processes a node and nodes are counted from 1. Correct --nproc and --nnodes.",
    "launch.deepspeed_log_level": "DEEPSPEED_LOG_LEVEL was read, and the message says what became of it. In the YAML the key is training.log_level.",
    "launch.deepspeed_timeout": "DEEPSPEED_TIMEOUT counts minutes and is taken as training.ddp_timeout, in seconds, because Paceline opens the process group. It is a whole number from 1; write the seconds in the YAML instead.",
    "launch.env_passed": "A variable of the environment changes how a library works and is passed on to the ranks as it is; the message says what it does. Unset it if that was not meant.",
    "launch.hostfile": "DeepSpeed's launcher knows of several nodes by a hostfile alone, with --no_ssh too. Write one line a node with its name and slots, and give --hostfile on every node.",
    "launch.loopback": "The address of node 0 is one that means this machine alone. That is right when all nodes are started here; otherwise each would wait for itself. Give --master-addr a name that the other nodes reach.",
    "launch.many_times": "A launcher has started this command in several processes, and the command starts processes itself: each would plan and start the whole job. Start it once a node, or let the launcher start `main.py` in each process.",
    "launch.master_addr": "With several nodes the address of node 0 has to be known to all of them, and none is given, or the one given stands for the machine that reads it (see /etc/hosts). Give --master-addr a name or address that every node reaches.",
    "launch.nccl_timeout": "NCCL reads no variable NCCL_TIMEOUT; its seconds are taken as training.ddp_timeout. It is a whole number from 1; the key in the YAML is the better place.",
    "launch.node_rank": "Nodes are counted from 0 to one less than their number. Correct --node_rank, or --nnodes.",
    "launch.one_process": "accelerate launch starts one process here, although more were asked for: that is what it does with --cpu. Use torchrun, or --multi_gpu with --num_processes, which it takes on CPUs too.",
    "launch.other_processes": "The YAML's launch section asks for another number of processes or nodes than the launcher has started. What was started runs; correct the line or remove it.",
    "launch.port_in_use": "Another program listens on the port where the ranks should meet. Take another one, on every node the same; a free one is named.",
    "launch.port_range": "A TCP port is a number from 1 to 65535.",
    "launch.rank_alone": "The environment says that this is one process of several but not of how many, so each would train alone in the same folder. Export RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each process, or start by torchrun or srun.",
    "launch.rendezvous": "MASTER_ADDR, and MASTER_PORT where it is set, are taken as the place where the nodes meet. --master-addr and --master-port say it on the command line.",
    "launch.restarts": "torchrun runs the same command again after a failure, and without training.resume_from_checkpoint: auto it does not go on from the run's last checkpoint. Set it to auto.",
    "launch.start": "A process could not be started: the program is missing or may not be run. The whole command is shown.",
    "launch.store_secret": "What the ranks tell each other is signed with a secret, and the one that was named cannot be used: no file, readable for everybody, or too short. Make one with openssl rand -hex 32 > FILE and chmod 600 FILE.",
    "launch.store_unsigned": "Ranks on several nodes, or started by another program, have no secret in common, so whoever reaches the port where they meet can speak for a rank and end the run. Name a secret on every node by PACELINE_STORE_SECRET_FILE or PACELINE_STORE_SECRET.",
    "launch.torch_debug": "torch refuses this value of TORCH_DISTRIBUTED_DEBUG when it is imported. Use OFF, INFO or DETAIL.",
    "launch.unknown": "No launcher has this name. The known ones are listed.",
    "launch.worker_killed": "A rank was ended by a signal. SIGKILL most often comes from the kernel for want of memory (see dmesg) or from a job manager; SIGSEGV, SIGABRT and SIGFPE come from a library's native code. The rank's log has its last lines.",
}
_FOLDER = {
    "run.exists": "The output directory already holds a run, and nothing is overwritten silently. Go on with it by training.resume_from_checkpoint: latest, take another training.experiment_name, or set the old one aside by training.overwrite_output_dir: true.",
    "run.in_use": "Another Paceline process writes this run directory right now. Wait for it, stop it, or set another training.output_dir or training.experiment_name.",
    "run.not_a_directory": "training.output_dir is the path of a file. Name a directory.",
    "run.not_writable": "The output directory cannot be made or written. Name a directory that you may write to, or free space.",
    "run.set_aside": "The earlier run of this directory was renamed, as training.overwrite_output_dir asks; nothing was deleted.",
}
_MEETING = {
    "runtime.backend": "NCCL moves data of CUDA devices only, and this run computes elsewhere. Set ddp_backend: gloo.",
    "runtime.device": "The device that the plan names is not there for this process: torch is built for the CPU, sees no CUDA device, or fewer than processes were started. Start fewer processes, install a torch with CUDA, or set use_cpu: true.",
    "runtime.env_local_rank": "The local rank is the index of a process on its node, from 0 to one less than the processes there. LOCAL_RANK or --local-rank is outside that range, or the two differ.",
    "runtime.env_missing": "Of the variables that belong together (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) some are set and some are not. Set all of them, or none.",
    "runtime.env_number": "A variable of the launcher is not the number that it has to be. Correct it in the command that starts the ranks.",
    "runtime.env_port": "MASTER_PORT is not a TCP port. Set a number from 1 to 65535, for instance 29500.",
    "runtime.env_rank": "RANK lies outside 0 to WORLD_SIZE - 1. Start all ranks with the same WORLD_SIZE and each with a rank of its own.",
    "runtime.env_two_launchers": "RANK and WORLD_SIZE were exported by hand or by one launcher, and another one around says something else. Unset RANK, WORLD_SIZE and LOCAL_RANK before the command.",
    "runtime.env_uneven": "The nodes run different numbers of processes, and a mesh needs as many on each. Ask the job manager for the same number of tasks a node.",
    "runtime.group": "The ranks met, but one cannot connect to the others over the backend. Usually it takes a network interface that the nodes do not share: name the right one in the variable that is shown.",
    "runtime.json_limit": "A rank wants to send the others more text at once than is allowed. Send less, or in pieces.",
    "runtime.port_in_use": "The port where the ranks should meet is taken on node 0. Take another by launch.master_port or --master_port, or end the other run.",
    "runtime.ranks_missing": "Not every rank came to the meeting point in time; those that are missing are named. Look at their logs. training.ddp_timeout sets how long the others wait.",
    "runtime.rendezvous": "The meeting point at MASTER_ADDR and MASTER_PORT cannot be reached. Give an address of node 0 that all nodes reach and a port that no firewall closes.",
    "runtime.store_forged": "Something else than a rank of this run writes into the ranks' store. Such values are ignored. Find out who reaches that port, and let the ranks meet in a network of their own.",
    "runtime.store_lost": "The process that hosts the ranks' meeting point is gone without having said why. Look at its output and at the kernel's log of its node; want of memory is the commonest cause.",
    "runtime.store_open": "The address where the ranks meet belongs to no network interface of rank 0's machine, so its port had to be opened on all of them. Give an address of rank 0's own where there is one.",
    "runtime.store_secret": "Two ranks have different secrets for what they tell each other, or one has none. Name the same one on every node.",
    "world.mismatch": "A rank was started with something else than rank 0: another config, other data, code or environment. Start all ranks with the same.",
    "world.peer_lost": "A rank lost the connection to another one that left no error behind. Look at that rank's log; a process that was killed (kill -9, want of memory) leaves none.",
}
CODES = {**_STARTING, **_FOLDER, **_MEETING}
