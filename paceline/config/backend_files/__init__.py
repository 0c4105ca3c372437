"""Other systems' configuration files, read as the lowest layer, in one normal form.

Every key of such a file is kept, translated with a note, or refused with ``file:line`` and the reason; none
is dropped silently. The rest of the program reads after ``load_config``:

``training.fsdp``
    The sharding: ``full_shard``, ``shard_grad_op``, ``no_shard``, ``hybrid_shard``, ``hybrid_shard_zero2``.
    None without FSDP, or with ``distributed_strategy: fsdp`` and no sharding: then the mesh decides.
``training.fsdp_config``
    A mapping of the given keys without the prefix ``fsdp_``; with a sharding also reshard_after_forward::

        version                        1 | 2: the version requested; FSDP2 runs
        reshard_after_forward          bool, follows from the sharding
        auto_wrap_policy               "transformer" | "size" | "none"
        transformer_layer_cls_to_wrap  list of class names
        min_num_params                 int
        backward_prefetch              "backward_pre" | "backward_post" | "none"
        forward_prefetch, cpu_offload, cpu_ram_efficient_loading, sync_module_states, use_orig_params,
        limit_all_gathers, activation_checkpointing  bool
        state_dict_type                "full_state_dict" | "sharded_state_dict" | "local_state_dict"
        xla, xla_fsdp_v2, xla_fsdp_grad_ckpt  bool;  xla_fsdp_settings  mapping

``training.deepspeed`` The DeepSpeed JSON with the names of DeepSpeed 0.19.8, keeping ``"auto"``; removed
    features, comments and translated keys are dropped, each with a note. Numbers and booleans are typed,
    blocks are mappings. Of the three batch keys a number is kept. ``"auto"`` (and an absent key that a higher
    layer sets) comes from ``training.*``. A key that is absent everywhere follows from ``train_batch_size``
    and the number of processes, by DeepSpeed's rule (``batch_of``). It is a path only if the file is missing;
    then a start is refused. ``training.mixed_precision``, ``optim``, ``learning_rate``,
    ``lr_scheduler_type``, ``parallelism.*``, ``launch.*`` Have the files' values unless a higher layer sets
    them; these keys are read, not the copies in the JSON.

Normalising a normal form does not change it.
"""
