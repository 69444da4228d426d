"""Connections and links turn the engine's events into operations and answers into deliveries and outcomes."""
