"""Hardware: a probe of this machine, and a catalogue of accelerators by name."""
