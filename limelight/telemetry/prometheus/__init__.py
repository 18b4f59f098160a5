"""The Prometheus side: what `/metrics` shows, read from plain numbers at the scrape."""
