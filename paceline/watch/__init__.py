"""Looking at runs from outside: reads run directories only, imports no torch."""
