"""The requests of a server, seen from outside while they run."""
