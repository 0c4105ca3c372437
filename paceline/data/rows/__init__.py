"""Rows: formats, messages, tool calls, and errors of rows."""
