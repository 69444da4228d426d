"""Encoded AMQP messages into Arrow columns, and Arrow columns into encoded messages."""
