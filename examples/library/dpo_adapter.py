# DPO of an adapter that exists already (TRL: AutoPeftModelForCausalLM and DPOTrainer)
import paceline

paceline.train(
    {
        "model": {"name_or_path": "Qwen/Qwen3-4B"},
        "lora": {"adapter_name_or_path": "trl-lib/Qwen3-4B-LoRA"},
        "data": {"train": "trl-lib/ultrafeedback_binarized", "max_length": 1024, "packing": False},
        "training": {
            "algorithm": "dpo",
            "output_dir": "outputs/Qwen3-4B-DPO",
            "learning_rate": 1e-6,
            "gradient_checkpointing": True,
        },
    }
)
