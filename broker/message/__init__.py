"""The bytes of a message: as stored in the log, as changed by a settlement, and as delivered to clients."""
