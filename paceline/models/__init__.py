"""Models: built by ``factory``, wrapped in the root module of a role (``roles``), with a fused head, packed attention and low precision."""
