"""What a refusal says of partitions that are down: what helps, or who must do what. Pure."""

from __future__ import annotations

from collections.abc import Mapping

DAMAGED, FAILED = "damaged", "failed"
"""The states of a partition that only an operator ends (`broker/partition/health.py`)."""
TRY_AGAIN = "Please try again."
RECEIVE_AGAIN = "The locks of its messages have ended: please receive the messages again."
ACCEPT_AGAIN = "The lock of its session has ended: please accept the session again."


def outlook_of(health: str, advice: str = TRY_AGAIN) -> str:
    """The end of a sentence that begins with a partition in this state. `advice`: what to do once it is
    available again; its locks are void by then."""
    if health == DAMAGED:
        return "is damaged. It stays unavailable until an operator repairs it."
    if health == FAILED:
        return "has failed. It stays unavailable until an operator restarts the broker."
    return f"is not available at the moment. {advice}"


def outlook_of_all(down: Mapping[int, str]) -> str:
    """The sentences after one that says that these partitions are not available: their states by number."""
    texts = [
        f"An operator must {remedy} {', '.join(map(str, numbers))} ({state})."
        for state, remedy in ((DAMAGED, "repair"), (FAILED, "restart the broker for"))
        if (numbers := sorted(number for number, health in down.items() if health == state))
    ]
    if not texts or any(health not in (DAMAGED, FAILED) for health in down.values()):
        texts.append(TRY_AGAIN)
    return " ".join(texts)
