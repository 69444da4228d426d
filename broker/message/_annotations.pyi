def fronts(
    messages: list[bytes],
    tokens: list[bytes] | None,
    sequence_numbers: list[int],
    enqueued_at_ms: list[int],
    expires_at_ms: list[int | None],
    delivery_counts: list[int],
    changed: list[bytes | None],
    shared: bytes,
    shared_elements: int,
    /,
) -> tuple[list[bytes], list[bytes], list[int]]: ...
