"""Text generation from a model: batched, greedy or sampled, for rollouts and for chat in the terminal."""
