"""What requests to `$management` cost in a throttled namespace, in credits (AMQP contract 9.3)."""

from __future__ import annotations

from broker.throttle.throttle import MANAGEMENT_CREDITS

FREE = frozenset(
    (
        "com.microsoft:update-disposition",
        "com.microsoft:renew-lock",
        "com.microsoft:renew-session-lock",
        "partibus:renew-lock",
        "partibus:settle-through",
    )
)
"""Operations on messages that were paid for as they were handed over. On links, settlements cost nothing
either. Refusing them would have the messages delivered again."""
BY_MESSAGE = frozenset(
    (
        "com.microsoft:schedule-message",
        "com.microsoft:receive-by-sequence-number",
        "com.microsoft:peek-message",
        "partibus:send-messages",
    )
)
"""Operations that send, receive or show messages, and are charged for each of these where that is done."""
FREES_MEMORY = frozenset(
    (
        "com.microsoft:batch-delete-messages",
        "com.microsoft:cancel-scheduled-message",
        "partibus:delete-messages",
        "partibus:purge-messages",
        "partibus:advance-cursor",
        "partibus:delete-cursor",
    )
)
"""Operations that remove messages, or what keeps them, and so are admitted while the broker lacks memory."""


def cost_of(operation: str) -> int:
    """The credits that a request for this operation costs, besides those for messages."""
    return 0 if operation in FREE or operation in BY_MESSAGE else MANAGEMENT_CREDITS
