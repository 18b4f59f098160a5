"""Measurements of a server, of the engine in this process, of starting, and of the kernels: `limelight bench`."""
