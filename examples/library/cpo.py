# CPO, as TRL's page on CPOTrainer begins
import paceline

paceline.train(
    {
        "model": {"name_or_path": "Qwen/Qwen2-0.5B-Instruct"},
        "data": {"train": "trl-lib/ultrafeedback_binarized", "max_length": 1024, "packing": False},
        "training": {
            "algorithm": "cpo",
            "output_dir": "outputs/Qwen2-0.5B-CPO",
            "learning_rate": 1e-6,
            "gradient_checkpointing": True,
        },
    }
)
