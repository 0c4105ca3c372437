"""Text generation from a model: batched, greedy or sampled, for rollouts, evaluations and chat."""
