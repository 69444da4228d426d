"""AMQP 1.0, sans-IO: bytes in, events out. Knows no broker, no sockets, no clock."""
