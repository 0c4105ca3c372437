# SFT on prompts and completions, loss on the completions alone, as TRL does with completion_only_loss=True
import paceline

paceline.train(
    {
        "model": {"name_or_path": "Qwen/Qwen2.5-0.5B-Instruct"},
        "data": {"train": "trl-lib/kto-mix-14k", "max_length": 1024, "packing": False},
        "training": {
            "output_dir": "outputs/Qwen2.5-0.5B-SFT",
            "learning_rate": 2e-5,
            "gradient_checkpointing": True,
        },
    }
)
