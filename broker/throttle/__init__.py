"""Refuses operations: those of a throttled namespace, and messages that the broker has no memory for."""
