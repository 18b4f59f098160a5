"""Replay bundles: what one request was given, drew and shared its steps with, and the same run once more."""
