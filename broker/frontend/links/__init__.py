"""The links on which clients send to, receive from and browse entities."""
