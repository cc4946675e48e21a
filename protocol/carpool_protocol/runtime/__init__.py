"""The parts of the protocol that touch the outside: the link, readiness, the journal's file."""
