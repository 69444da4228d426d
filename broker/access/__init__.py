"""Who may do what: shared access signatures, and the addresses that they are for."""
