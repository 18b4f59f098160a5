"""The runtimes of `compare.py`, each a program of its own that a Python with that runtime runs."""
