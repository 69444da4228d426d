from protocol.links import Delivery

def bind(
    functions: tuple[int, ...],
    deliveries: int,
    sizes: int,
    bytes: int,
    count_max: int,
    bytes_max: int,
    small_frame_bytes: int,
    accepted: int,
    /,
) -> None: ...
def read(
    transport: int,
    collector: int,
    ids: int,
    data: bytes,
    begin: int,
    most: int,
    transfers_only: bool,
    /,
) -> tuple[int, list[Delivery], list[bytes] | None, bool, bool, int] | None: ...
def write(transport: int, collector: int, accepted: list[Delivery], /) -> tuple[bytes, int, bool]: ...
