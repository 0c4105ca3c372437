"""Plans: pure arithmetic from a config and the hardware to what will happen, with the reason for each choice. No torch."""
