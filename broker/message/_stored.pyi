from collections.abc import Callable, Sequence

def store(
    messages: Sequence[bytes], new_id: Callable[[], str], /
) -> tuple[
    list[bytes],
    list[int | None] | None,
    list[str | None] | None,
    list[str | None] | None,
    list[int | None] | None,
    list[int],
]: ...
