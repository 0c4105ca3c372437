"""The tensors and computation of each rank: the input of memory and time estimates."""
