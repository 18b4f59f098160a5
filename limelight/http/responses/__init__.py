"""`/v1/responses`: answers made of items, kept so that they can be continued, fetched, or left to themselves."""
