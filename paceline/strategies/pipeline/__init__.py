"""torch.distributed.pipelining's schedules behind the strategy's interface."""
