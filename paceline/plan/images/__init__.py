"""The tokens that a picture becomes, from its size and the processor's settings alone. No torch."""
