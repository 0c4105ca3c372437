"""Other systems' configuration files, read as the lowest layer, in ONE normal form.

Every key of such a file is kept, translated with a note, or refused with ``file:line`` and the reason; nothing is dropped in silence.
What the rest of the program reads after ``load_config``:

``training.fsdp``
    One word for the sharding: ``full_shard``, ``shard_grad_op``, ``no_shard``, ``hybrid_shard``, ``hybrid_shard_zero2``; None: no FSDP,
    or a strategy that names it (``distributed_strategy: fsdp``) with no sharding asked for, so that the mesh decides.
``training.fsdp_config``
    A mapping without the prefix ``fsdp_``, only of keys that were written (``reshard_after_forward`` is always there with a sharding)::

        version                        1 | 2: what was asked for; FSDP2 runs
        reshard_after_forward          bool, follows from the sharding
        auto_wrap_policy               "transformer" | "size" | "none"
        transformer_layer_cls_to_wrap  list of class names
        min_num_params                 int
        backward_prefetch              "backward_pre" | "backward_post" | "none"
        forward_prefetch, cpu_offload, cpu_ram_efficient_loading, sync_module_states, use_orig_params, limit_all_gathers,
        activation_checkpointing       bool
        state_dict_type                "full_state_dict" | "sharded_state_dict" | "local_state_dict"
        xla, xla_fsdp_v2, xla_fsdp_grad_ckpt  bool;  xla_fsdp_settings  mapping

``training.deepspeed``
    The DeepSpeed JSON in the spelling of DeepSpeed 0.19.8, ``"auto"`` kept; removed features, comments and translated keys are gone
    from it (each with a note). Numbers and booleans have their own types, blocks are mappings. The three batch keys: a number stands
    as written; ``"auto"`` (and an absent key that a higher layer sets) comes from ``training.*``; a key that is absent everywhere
    follows from ``train_batch_size`` and the number of processes, by DeepSpeed's own rule (``batch_of``).
    A path stays a text only where the file is missing; a start is then refused.
``training.mixed_precision``, ``optim``, ``learning_rate``, ``lr_scheduler_type``, ``parallelism.*``, ``launch.*`` …
    Hold what the files say, unless a higher layer says otherwise: those keys own the value, not the copy inside the JSON.

Normal forms are read back as themselves.
"""
