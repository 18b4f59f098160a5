"""Advice and reasons that several rows give."""

TEXT_ONLY = "this server reads and writes text only"
IDENTITY = "says who asks; nothing in the answer depends on it"
FILING = "says how the request is filed; nothing is stored"
CACHING = "caching is automatic and per cache_salt"
