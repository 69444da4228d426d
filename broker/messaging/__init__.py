"""What a client does with messages, decided once for links, requests and every other way to a queue."""
