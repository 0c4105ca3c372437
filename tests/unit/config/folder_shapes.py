"""Folders as people have them: shape → file → text."""

from __future__ import annotations

LF = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
lora_rank: 8
dataset: ours
dataset_dir: data
template: qwen
cutoff_len: 1024
bf16: true
output_dir: saves/sft
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
deepspeed: ds_z3.json
"""
DS = '{"zero_optimization": {"stage": 3}, "train_batch_size": "auto", "bf16": {"enabled": "auto"}}\n'
ROW = '{"instruction": "a", "output": "b"}\n'
INFO = '{"ours": {"file_name": "ours.jsonl"}}\n'
SBATCH = """\
#!/bin/bash
#SBATCH --job-name=sft
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
module load cuda
export NCCL_P2P_DISABLE=1 WANDB_API_KEY=abcdefghijklmnopqrstuvwxyz0123456789abcd
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_id $SLURM_JOB_ID --rdzv_backend c10d \\
  --rdzv_endpoint $MASTER_ADDR:29500 -m llamafactory.cli train sft.yaml
"""
AXOLOTL = """\
base_model: Qwen/Qwen2.5-0.5B
datasets:
  - path: data/rows.jsonl
    type: chat_template
sequence_len: 512
micro_batch_size: 2
gradient_accumulation_steps: 2
num_epochs: 1
optimizer: adamw_torch
learning_rate: 1e-4
output_dir: out
"""
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
mixed_precision: bf16
num_machines: 1
num_processes: 4
"""
TRAINJOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: dpo
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    image: example/trl
    numNodes: 2
    numProcPerNode: 4
    env:
      - name: MODEL
        value: Qwen/Qwen2.5-0.5B
    command: [trl, dpo]
    args:
      - --model_name_or_path
      - $(MODEL)
      - --dataset_name
      - trl-lib/ultrafeedback_binarized
      - --learning_rate
      - "5e-7"
      - --output_dir
      - /out
"""
PYTORCHJOB = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: files}
data:
  sft.yaml: |
    model_name_or_path: Qwen/Qwen2.5-0.5B
    stage: sft
    do_train: true
    finetuning_type: full
    dataset: alpaca_en_demo
    template: qwen
    output_dir: /out
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: sft}
spec:
  nprocPerNode: "8"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: &pod
        spec:
          volumes: [{name: conf, configMap: {name: files}}]
          containers:
            - name: pytorch
              image: example/lf
              volumeMounts: [{name: conf, mountPath: /conf}]
              command: [bash, -c]
              args:
                - >-
                  torchrun --nnodes=$PET_NNODES --nproc_per_node=$PET_NPROC_PER_NODE --node_rank=$RANK
                  --master_addr=$MASTER_ADDR -m llamafactory.cli train /conf/sft.yaml
    Worker:
      replicas: 3
      template: *pod
"""
SWIFT = """\
# usage: bash train.sh
nproc_per_node=2
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B}
CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=$nproc_per_node \\
swift sft \\
    --model $MODEL \\
    --train_type lora \\
    --dataset data/rows.jsonl \\
    --lora_rank 8 \\
    --output_dir output
"""
MAKEFILE = """\
MODEL ?= Qwen/Qwen2.5-0.5B
OUT := out
FLAGS = --model_name_or_path $(MODEL) \\
        --output_dir $(OUT)/$@

.PHONY: sft dpo
sft:
\t@echo training
\ttrl sft $(FLAGS) --dataset_name data/rows.jsonl --packing true
dpo: sft
\tHF_HUB_OFFLINE=1 accelerate launch --num_processes 4 --config_file acc.yaml -m trl.scripts.dpo $(FLAGS) \\
\t  --dataset_name data/pairs.jsonl
test:
\tpython -m pytest tests
"""
DEEPSPEED = """\
#!/usr/bin/env bash
cd "$(dirname "$0")/.."
OUT=out/$1
deepspeed --hostfile conf/hostfile --master_port 29501 src/train.py \\
    --deepspeed conf/ds.json \\
    --stage sft --do_train True --model_name_or_path Qwen/Qwen2.5-0.5B --dataset alpaca_en_demo \\
    --template qwen --finetuning_type full --output_dir $OUT
"""

SHAPES: dict[str, dict[str, str]] = {
    "llamafactory": {
        "run.sbatch": SBATCH,
        "sft.yaml": LF,
        "ds_z3.json": DS,
        "data/dataset_info.json": INFO,
        "data/ours.jsonl": ROW,
    },
    "axolotl": {
        "run.sh": "accelerate launch --config_file acc.yaml -m axolotl.cli.train conf/a.yaml\n",
        "conf/a.yaml": AXOLOTL,
        "acc.yaml": ACCELERATE,
        "data/rows.jsonl": '{"messages": [{"role": "user", "content": "a"}]}\n',
    },
    "trainjob": {"k8s/job.yaml": TRAINJOB},
    "pytorchjob": {"job.yaml": PYTORCHJOB},
    "swift": {"scripts/train.sh": SWIFT, "data/rows.jsonl": ROW},
    "makefile": {"Makefile": MAKEFILE, "acc.yaml": ACCELERATE},
    "deepspeed": {
        "scripts/train.sh": DEEPSPEED,
        "scripts/all.sh": "for n in 1; do echo; done\nbash scripts/train.sh first\n",
        "conf/hostfile": "a slots=8\nb slots=8\n",
        "conf/ds.json": DS,
        "src/train.py": "from llamafactory.train.tuner import run_exp\nrun_exp()\n",
    },
    "mixed": {
        "README.md": "# ours\n",
        "lf/run.sh": "llamafactory-cli train sft.yaml\nllamafactory-cli export merge.yaml\n",
        "lf/sft.yaml": LF,
        "lf/ds_z3.json": DS,
        "lf/merge.yaml": "model_name_or_path: m\nadapter_name_or_path: a\ntemplate: qwen\nexport_dir: o\n",
        "ax/a.yaml": AXOLOTL,
        "docker/Dockerfile": 'FROM x\nENV CFG=ax/b.yaml\nWORKDIR /app\nENTRYPOINT ["axolotl"]\n'
        'CMD ["train", "ax/b.yaml"]\n',
        "ax/b.yaml": AXOLOTL,
        "verl/conf.yaml": "actor_rollout_ref: {model: {path: m}}\n",
        "tools/convert.sh": "python tools/convert.py --input a --output b\n",
        "tools/convert.py": "print()\n",
        ".git/config": "[core]\n",
        "notes.ipynb": "{}",
    },
}
