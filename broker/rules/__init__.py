"""Rules of subscriptions: which messages they match, and how their actions change them."""
