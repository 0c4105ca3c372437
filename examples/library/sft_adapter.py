# SFT of an adapter that exists already (TRL: AutoPeftModelForCausalLM and SFTTrainer)
import paceline

paceline.train(
    {
        "model": {"name_or_path": "Qwen/Qwen3-4B"},
        "lora": {"adapter_name_or_path": "trl-lib/Qwen3-4B-LoRA"},
        "data": {"train": "trl-lib/Capybara", "max_length": 1024, "packing": False, "train_on": "all"},
        "training": {
            "output_dir": "outputs/Qwen3-4B-SFT",
            "learning_rate": 2e-5,
            "gradient_checkpointing": True,
        },
    }
)
