"""Operations that a partition carries out, and its answers: plain data, no live objects.

`interface.py` lists all of them.

Each operation travels to the partition's mailbox with the number of the *client* that asks (a link, a
management request, an HTTP request: `ClientId`), and each answer travels back to the sink kept under
that number. A client gets its answers in the order in which the partition decided them. `cookie` is the
client's own note and is returned unchanged. One operation carries many messages; nothing is made per message.

A *lock token* is the 16 bytes used as delivery tag: the sequence number (8 bytes, big endian; its top 16 bits
are the partition's number) and a nonce that distinguishes this lock from every other lock of the same
message, also across restarts.
"""
