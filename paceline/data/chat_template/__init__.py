"""Conversations rendered and tokenized with the chat template, with the tokens that carry loss."""
