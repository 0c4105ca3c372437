# Paceline in a container, for CPUs or for NVIDIA cards:
#
#   docker build --target cpu -t paceline:cpu .
#   docker build --target cuda -t paceline:cuda .
#   docker run --rm -v "$PWD:/work" paceline:cpu plan my.yaml
#   docker run --rm --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD:/work" paceline:cuda train my.yaml --nproc 8
#
# torch's wheels bring CUDA's libraries, so the base needs none; where DeepSpeed shall compile ops of its own for the card, name a base with
# nvcc and this Python (--build-arg BASE=...). scripts/try_dockerfile runs each RUN line of both without docker.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS system
# A C++ compiler for torch.compile, Triton and DeepSpeed's ops; libaio for offload to NVMe.
RUN apt-get update && apt-get install -y --no-install-recommends g++ libaio-dev && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 DS_BUILD_OPS=0
RUN python3 -m venv /opt/venv
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY paceline ./paceline
ENTRYPOINT ["paceline"]

FROM system AS cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV DS_ACCELERATOR=cpu
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt "/src[lora,page]"
RUN paceline --version && paceline plan --model llama-3-8b --hardware 8xA100
WORKDIR /work

FROM system AS cuda
RUN pip install --no-cache-dir -c constraints.txt "/src[deepspeed,qlora,page]"
RUN paceline --version && paceline plan --model llama-3-8b --hardware 8xA100
WORKDIR /work
