"""Verbs for trained models: chat, generate, evaluate, serve, export, checkpoints."""
