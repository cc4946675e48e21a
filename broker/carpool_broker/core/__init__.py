"""The broker's decisions: pure, synchronous, without clock, dice or I/O."""
