"""Connections and links: events of the engine become operations, answers become deliveries and outcomes."""
