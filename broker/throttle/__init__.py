"""Refuses messages when the broker as a whole has no room for them."""
