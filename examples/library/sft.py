# SFT on conversations, as TRL's page on SFTTrainer begins
import paceline

paceline.train(
    {
        "model": {"name_or_path": "Qwen/Qwen3-0.6B"},
        "data": {"train": "trl-lib/Capybara", "max_length": 1024, "packing": False, "train_on": "all"},
        "training": {
            "output_dir": "outputs/Qwen3-0.6B-SFT",
            "learning_rate": 2e-5,
            "gradient_checkpointing": True,
        },
    }
)
