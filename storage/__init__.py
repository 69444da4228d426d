"""Records in, records out: append-only logs on files. Knows no AMQP and no entities."""
