# KTO, as TRL's page on KTOTrainer begins
import paceline

paceline.train(
    {
        "model": {"name_or_path": "Qwen/Qwen2-0.5B-Instruct"},
        "data": {"train": "trl-lib/kto-mix-14k", "max_length": 1024, "packing": False},
        "training": {
            "algorithm": "kto",
            "output_dir": "outputs/Qwen2-0.5B-KTO",
            "learning_rate": 1e-6,
            "gradient_checkpointing": True,
        },
    }
)
