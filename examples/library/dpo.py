# DPO, as TRL's page on DPOTrainer begins
import paceline

paceline.train(
    {
        "model": {"name_or_path": "Qwen/Qwen3-0.6B"},
        "data": {"train": "trl-lib/ultrafeedback_binarized", "max_length": 1024, "packing": False},
        "training": {
            "algorithm": "dpo",
            "output_dir": "outputs/Qwen3-0.6B-DPO",
            "learning_rate": 1e-6,
            "gradient_checkpointing": True,
        },
    }
)
