"""What a model writes -> what it means: reasoning, text, tool calls. State machines over text, however it is cut."""
