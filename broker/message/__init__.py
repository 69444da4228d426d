"""The bytes of a message: as the log keeps them, as they are changed by a settlement, and as clients get
them."""
