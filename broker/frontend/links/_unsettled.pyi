from broker.identifiers import LockToken
from protocol.links import Delivery

def take(
    unsettled: dict[Delivery, LockToken], deliveries: list[Delivery], /
) -> dict[int, tuple[list[Delivery], list[LockToken]]]: ...
