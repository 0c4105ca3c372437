"""What a row is: formats, messages, tool calls, and what is wrong with one."""
