"""One partition of an entity: its state machine (pure) and the task that owns it."""
