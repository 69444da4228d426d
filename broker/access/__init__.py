"""Who may do what: shared access signatures, and the addresses they apply to."""
