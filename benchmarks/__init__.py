"""Measurements for developers: comparisons with other runtimes, the event loop, guessing."""
