"""What the API looks like, for machines (an OpenAPI document) and for people (a page), from the types that serve it."""
