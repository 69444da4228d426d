"""Administration, health, metrics and AMQP over WebSocket, all on one port."""
