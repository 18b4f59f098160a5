"""What a model writes -> what it means: reasoning, text, tool calls. Pure state machines over text, whatever its split."""
