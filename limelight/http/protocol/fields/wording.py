"""Advice and reasons that several rows give."""

TOOLS = "tool calls are not served in this release; describe the tools in the system message and parse the answer"
STRUCTURED = "constrained output is not served in this release; ask for the format in the prompt and check the answer"
TEXT_ONLY = "this server reads and writes text only"
IDENTITY = "says who asks; nothing in the answer depends on it"
FILING = "says how the request is filed; nothing is stored"
CACHING = "caching is automatic and per cache_salt"
