"""Files of requests, as OpenAI's Batch API has them, answered by an engine in this process, without a server."""
