"""What every part of the broker uses, and which uses none of them: time, refusals, counters, slices of work,
sockets."""
