"""The running entities, found by name, with their partitions, routers and counters."""
