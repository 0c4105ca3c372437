# A language model on plain texts, as Transformers' page on fine-tuning with Trainer
import paceline

paceline.train(
    {
        "model": {"name_or_path": "Qwen/Qwen3-0.6B"},
        "data": {
            "train": [{"path": "karthiksagarn/astro_horoscope", "columns": {"text": "horoscope"}}],
            "validation_split": 0.1,
            "max_length": 512,
            "packing": False,
            "train_on": "all",
        },
        "training": {
            "output_dir": "outputs/qwen3-finetuned",
            "num_train_epochs": 3,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 8,
            "gradient_checkpointing": True,
            "bf16": True,
            "learning_rate": 2e-5,
            "logging_steps": 10,
            "eval_strategy": "epoch",
            "save_strategy": "epoch",
            "load_best_model_at_end": True,
        },
    }
)
