"""Codes of what is looked at and tried before a start."""

from __future__ import annotations

_MODELS = {
    "model.adapter_folder": "The folder holds an adapter, not a model. Name the base model in model.name_or_path and the folder in lora.adapter_name_or_path.",
    "model.attention": "Transformers has no attention of this name for the model's class, or its package is not installed. attn_implementation: auto always works.",
    "model.damaged_weights": "A safetensors file is shorter or longer than its own header says, or holds no tensor: a copy or a download was cut off. Fetch it again.",
    "model.missing_shards": "model.safetensors.index.json names files that are not in the folder. Fetch them again.",
    "model.no_weights": "The folder has a config.json and no weights that can be read (model.safetensors, or an index and its files). Fetch them, or train from scratch with model.config.",
    "model.special_file": "A FIFO, a socket or a device lies among the files of a model, a tokenizer or an adapter: reading it would wait for ever, or never end.",
    "model.not_a_folder": "model.name_or_path names a file. A model is a folder with config.json, weights and tokenizer, or a name on the hub.",
    "model.not_found": "The model is no folder here, and the hub did not give it. Correct model.name_or_path, or download it while there is a network.",
    "model.offline": "The model is on the hub, its files are not in this machine's cache, and HF_HUB_OFFLINE forbids to fetch them. A start is refused; a plan can be looked at.",
    "data.offline": "A tokenizer or a data set is on the hub, not in this machine's cache, and HF_HUB_OFFLINE forbids to fetch it. Fetch it before, or name a folder.",
    "model.revision_unread": "model.revision names a branch, tag or commit of the hub, and this model is a folder or made from scratch. It sets nothing there. Remove it.",
    "model.pickled": "The weights are pickle files (.bin), which can run code when they are read. The message has a line that converts them with Transformers, for where you trust them.",
    "model.weights_index": "model.safetensors.index.json says which file holds which weight; it cannot be read. Fetch it again.",
}
_TRIALS = {
    "train.compile_backend": "torch.compile has no backend of this name here. Leave torch_compile_backend out for torch's own, inductor.",
    "train.compile_mode": "torch.compile has no such mode. Leave torch_compile_mode out for the default.",
    "rewards.not_a_function": "training.rollout.rewards names something of a module that is no function. Name a function of prompts and completions.",
    "rewards.signature": "A reward function is called with prompts, completions and the rows' columns, by name, and with its options. This one needs something else, or takes no such option.",
    "trial.failed": "What only an import can tell was tried in a process of its own, and the library refused in its own words. The processes of the run would meet the same.",
    "trial.not_here": "The model's config.json is not on this machine, so its class could not be asked before the start.",
    "trial.unfinished": "The process that looks and tries before a start was ended by a signal or by its time limit. It goes on without; the run's processes may meet the same.",
}
_MACHINE = {
    "plan.package": "A package that the config needs is not installed here. The message has the line that installs it.",
    "plan.compiler": "torch.compile's inductor writes C++ for a CPU and compiles it. Without a compiler it ends in the first step.",
}
CODES = {**_MODELS, **_TRIALS, **_MACHINE}
