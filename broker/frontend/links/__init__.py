"""Links of clients to entities: sending, receiving and browsing."""
