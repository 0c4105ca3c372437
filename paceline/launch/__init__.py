"""Launchers: build argv and environment from a plan (pure functions), and supervise the processes. No
torch.
"""
