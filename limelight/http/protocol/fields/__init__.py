"""What every request field does: one table behind decoding, `GET /v1/capabilities`, the documentation and its tests."""
