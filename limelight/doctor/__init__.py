"""What this machine offers, what would run on it and what is missing, for `limelight doctor`.

Asks, and changes nothing: no download, no compiled kernel, no bound port outlives a question. Nothing waits without a
bound, and no answer has a key, the value of a variable, a host's name or the way to somebody's home.
"""
