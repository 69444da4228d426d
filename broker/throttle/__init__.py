"""When messages are refused because the broker as a whole has no room for them."""
