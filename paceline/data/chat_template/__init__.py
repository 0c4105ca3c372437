"""A conversation as the model reads it, and which of its tokens are learnt."""
