"""How agents are spoken to: an adapter per era, pure; lines in, neutral events out, and back."""
