"""What is asked before a start: machine, rules, plan, files, and what only an import can tell. No torch."""
