"""The Anthropic Messages API on the wire."""
