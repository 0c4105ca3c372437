"""DeepSpeed's engine behind the strategy's interface."""
