"""`/v1/responses` on the wire: what comes in, what goes out."""
