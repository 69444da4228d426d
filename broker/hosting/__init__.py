"""Where partitions run: in the broker's own process or in another one."""
