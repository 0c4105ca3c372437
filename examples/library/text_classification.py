# A classifier of texts, as Transformers' page on text classification, with a decoder in place of its encoder
import paceline

paceline.train(
    {
        "model": {"name_or_path": "Qwen/Qwen3-0.6B"},
        "data": {
            "train": "stanfordnlp/imdb",
            "eval": [{"path": "stanfordnlp/imdb", "split": "test"}],
            "max_length": 512,
            "packing": False,
        },
        "training": {
            "algorithm": "classification",
            "classification": {"labels": ["NEGATIVE", "POSITIVE"]},
            "output_dir": "outputs/qwen3-imdb",
            "learning_rate": 2e-5,
            "per_device_train_batch_size": 16,
            "per_device_eval_batch_size": 16,
            "num_train_epochs": 2,
            "weight_decay": 0.01,
            "eval_strategy": "epoch",
            "save_strategy": "epoch",
            "load_best_model_at_end": True,
        },
    }
)
