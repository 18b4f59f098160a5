"""API keys that lie in a file: hashed, with scopes and limits, read anew while the server runs."""
