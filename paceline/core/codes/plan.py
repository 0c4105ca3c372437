"""Codes of the plan: model sizes, hardware, batch, mesh, DeepSpeed's file as it will run."""

from __future__ import annotations

_SUBJECT = {
    "plan.subject": "A plan is made of a config, or of --model with --hardware; one of them is missing, or both name the model.",
    "plan.algorithm": "--algorithm names no algorithm that the forecast knows. The known ones are listed.",
    "plan.bits": "A base packed to 4 bits is trained by an adapter only. Give --lora with --bits.",
    "plan.rows_cards": "The rows of a step (--rows) cannot be shared out evenly over the cards by any strategy. The nearest numbers that can are named.",
    "plan.model_config": "The model's config.json is not on this machine or cannot be read, and without it nothing can be planned. Download it first, or name a folder that holds one.",
    "plan.model_heads": "hidden_size must be a multiple of num_attention_heads (or head_dim given), and num_attention_heads one of num_key_value_heads. The nearest number that is is named.",
    "plan.model_missing": "model.name_or_path looks like a path, and there is no such folder. Correct it, or give a hub name such as org/model.",
    "plan.model_size": "A size of the model is a whole number from 1 up.",
    "plan.model_sizes": "The model's family is not known, and sizes that a plan needs are missing from its config. Write them, or correct model_type if it was misspelt.",
    "plan.family": "Models of this type (model_type in config.json) are not trained: an encoder, a family that Transformers computes in a way that documents disturb each other, one that cannot be exported, or one that is not counted yet. docs/families.md lists what is trained and why the others are not.",
    "plan.family_strategy": "This family cannot be trained this way: context parallelism needs packed rows and rotary frequencies that do not follow a document's length, a pipeline needs a model whose state is its parameters. The hint names another way.",
    "plan.tower": "The model reads images or sound beside text. Its tower would be lost in the export, or stay untrained without a word. Take the text model of its family as a folder of its own.",
    "plan.balance_loss": "output_router_logits: true asks for a balance loss of the experts, which is not built: it would be left out. Set it to false to train without, which is what is computed.",
    "plan.alibi_twice": "Transformers' eager attention adds Falcon's ALiBi bias twice, its sdpa once: the losses are those of two different models. Leave attn_implementation at auto.",
    "plan.model_file": "A file of the model's folder is damaged, or is not what its name says: a header that is no header, tensors that overlap, a size that does not fit the shape, an index that names files that are not there. Download the model again.",
    "plan.weights_sizes": "Tensors of a safetensors file have other sizes than the config.json (or the model under an adapter) makes them: another vocabulary, width or number of layers. Take the config.json that belongs to the weights, or an adapter of this model.",
    "plan.model_type": "The model's config names no family. Write model_type, for instance llama.",
    "plan.model_unknown": "--model names no model of the built-in list. The nearest names are shown; a folder with config.json goes as well.",
    "plan.not_installed": "The config needs a package that is not installed here. The message has the command that installs it.",
    "prec.full_eval": "Evaluation computes with the same copies of the weights as training does. bf16_full_eval and fp16_full_eval therefore hold where training computes in that dtype, and are refused elsewhere.",
    "plan.deepspeed_missing": "The strategy needs the package deepspeed, which is not installed. Install it, or use fsdp, which shares out the same states.",
    "plan.no_closed_form": "A simulation is compared with the plan's own formulas, and this plan has none: a strategy of your own, or a model whose sizes are not known here.",
    "plan.no_torch": "A simulation runs the real module on torch's meta device and needs torch and transformers. Install them, or leave --simulate out.",
}
_HARDWARE = {
    "plan.hardware_file": "The hardware file cannot be read, or is not one mapping. It is YAML with the keys that the message lists.",
    "plan.hardware_form": "--hardware is a number and a name, as in 16xH100.",
    "plan.hardware_key": "The hardware file has keys that are not known. The nearest known ones are named.",
    "plan.hardware_missing": "A hardware file without a card of the catalogue has to name its memory and speeds itself; those missing are listed.",
    "plan.hardware_nodes": "The hardware named and the nodes asked for do not go together: nodes are taken to be alike and fully used. Give --hardware alone with all cards, or a YAML with cards_per_node.",
    "plan.hardware_unknown": "The catalogue has no accelerator of this name. The nearest names are shown; a YAML with its memory and speeds goes as well.",
    "plan.hardware_value": "A value of the hardware file is not a number above 0.",
    "plan.too_few_devices": "More processes a node were asked for than CUDA devices are visible. Start fewer, or train on the CPU by training.use_cpu=true.",
    "plan.world_nodes": "The number of processes is not a multiple of the nodes; each node starts the same number.",
    "plan.world_size": "Processes and nodes are counted from 1 up.",
}
_BATCH = {
    "plan.batch_world": "The run's rows a step cannot be shared evenly by this many data-parallel ranks. The nearest legal numbers of processes are named.",
    "plan.fastest_chooses": "distributed_strategy: fastest searches for the layout, and a key of the config already names part of it. Leave the key out, or use distributed_strategy: auto.",
    "plan.fastest_nothing": "No layout of this job fits, or none that fits can be started. More memory or cards, a shorter data.max_length, or adapters help.",
    "plan.fastest_unknown": "A search for the fastest layout needs facts that are not known, such as the hardware's speed or the model's sizes. Use distributed_strategy: auto.",
}
_ROOM = {
    "plan.start_card": "The start puts the whole model, in the masters' dtype, on every card before it is cut, cast or packed, and a card has less. Take what the message names: fsdp starts without.",
    "plan.start_host": "The start reads the whole model into the host memory of a node, once or in each of its processes, and the node has less. Take a strategy of which one process reads (fsdp), or fewer processes.",
    "plan.states_card": "Weights, gradients and optimizer that a rank keeps are more than its card, before any activation. Share them out over more cards, offload, or train an adapter.",
    "plan.states_host": "What the processes of a node keep in its memory (offloaded states; on a CPU all states) and their interpreters are more than it has, or than its cgroup allows. The message names what would fit.",
    "plan.rows_room": "The tokens of one micro-batch are more than a card (on a CPU: the host) holds, before any layer is computed. Lower per_device_train_batch_size or data.max_length.",
    "rollout.server_room": "Weights for a server that writes answers are gathered whole on every card, and a card has less room. Let the ranks answer together, or take more cards.",
    "rollout.gather_room": "gather_for_generation: true wants the whole model on every card, and a card has less room. Leave it out: the plan decides by the room there is.",
}
_ADAPTERS = {
    "plan.adapter_folder": "No adapter can be read at lora.adapter_name_or_path. It is a folder with adapter_config.json and adapter_model.safetensors; one on the hub is downloaded first.",
    "plan.adapter_kind": "The adapter is not plain LoRA: another method, or options that are not built. Give an adapter with r, lora_alpha and target_modules alone.",
    "plan.adapter_strategy": "Adapters are trained where a rank sees whole layers and rows, or shards by FSDP or ZeRO; not with tensor, context or pipeline parallelism. Change the strategy, or train all weights.",
    "plan.quantised_float64": "bitsandbytes computes in no float64. Set model.dtype: float32.",
    "plan.quantised_strategy": "Under this strategy packed 4-bit weights would be cut or cast. Take one of the strategies that are listed, or adapters on whole weights.",
}
_MESH = {
    "par.deepspeed": "A mesh size of training.parallelism and the DeepSpeed settings do not go together: they name two sizes, or an axis that DeepSpeed does not have. Name it once.",
    "par.ds_tp_mismatch": "The DeepSpeed settings name the tensor-parallel degree twice with two values. Keep autotp_size.",
    "par.pp_layers": "The model has fewer layers than pipeline stages. Lower pp_size or pp_stages_per_rank.",
    "par.pp_size": "The strategy pipeline needs at least two stages. Set pp_size, or use fsdp.",
    "par.pp_stages": "The schedule fixes how many stages a process holds: two for zbv, one for gpipe and 1f1b; interleaved and zero_bubble take more.",
    "par.sharding": "The sharding of the fsdp key and the mesh contradict each other: one keeps copies where the other shards. Change fsdp, dp_replicate_size or dp_shard_size as the message says.",
    "fsdp2.local_state": "FSDP2 has no local state dict. Use sharded_state_dict.",
}
_ZERO = {
    "zero.hpz": "ZeRO++ keeps a second copy of the weights within groups of zero_hpz_partition_size ranks; that number must divide the processes, and the copy needs ZeRO-3.",
    "zero.not_supported": "A block of the DeepSpeed file changes what is learnt and is not built. Switch it off in the file.",
    "zero.nvme_stage": "Only ZeRO-3 reads and writes NVMe. Set stage 3, or offload to the CPU.",
    "zero.offload": "Offload needs ZeRO-1 or higher, and knows the devices none, cpu and nvme.",
    "zero.offload_ratio": "Only ZeRO-3 offloads a part of the optimizer. Set ratio to 1.0.",
    "zero.optimizer_params": "A parameter of the DeepSpeed file's optimizer has no counterpart, and leaving it out would change the update. Set training.optim and training.optim_args instead, or take the parameter out.",
    "zero.quantised": "ZeRO++'s quantised exchange has kernels for CUDA only. Switch it off on other devices.",
}
_LATE = {
    "par.tp_width": "Tensor parallelism cuts the MLP's columns in equal parts. Choose a tp_size that divides its width.",
    "strategy.deepspeed_fp16": "From ZeRO-1 on DeepSpeed keeps the weights in float16, which it refuses on a CPU that cannot multiply in float16. bf16 runs everywhere.",
}
CODES = {**_LATE, **_SUBJECT, **_HARDWARE, **_BATCH, **_ROOM, **_ADAPTERS, **_MESH, **_ZERO}
