"""Shared by every part of the broker, and independent of all of them: time, refusals, counters, slices of
work, sockets."""
