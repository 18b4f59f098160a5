"""The Anthropic Messages API over the conversation that all endpoints share."""
