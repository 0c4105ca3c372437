"""From a model's folder or name to its weights, in the dtype and on the ranks that want them."""
