# A reward model, as TRL's page on RewardTrainer begins
import paceline

paceline.train(
    {
        "model": {"name_or_path": "Qwen/Qwen3-0.6B"},
        "data": {"train": "trl-lib/ultrafeedback_binarized", "max_length": 1024, "packing": False},
        "training": {
            "algorithm": "reward",
            "output_dir": "outputs/Qwen3-0.6B-Reward",
            "learning_rate": 1e-4,
            "gradient_checkpointing": True,
        },
    }
)
