"""Entities as data: what they are made of, what is allowed, and how the catalogue keeps them."""
