"""Launchers: a plan to argv and environment (pure), and the supervisor that starts them. No torch."""
