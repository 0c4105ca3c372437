"""The device of a process: selection, probe, cores, copies."""
