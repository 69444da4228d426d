"""The entities at work: found by name, with their partitions, their router and their counters."""
