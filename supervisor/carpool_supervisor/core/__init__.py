"""The supervisor's decisions: pure, synchronous, without clock, randomness and I/O."""
