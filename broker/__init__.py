"""The broker: what AMQP clients and files are joined by."""
