"""Load a model's weights from its folder or name, in the required dtype, on the ranks that need them."""
