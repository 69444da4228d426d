"""A blocking AMQP 1.0 client on proton's C core, and the broker's operations that the connector uses."""
