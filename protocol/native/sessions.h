/* The declarations of sessions.c for Python. cffi reads this file without a preprocessor, so it has
   declarations only. */

/* The unsettled deliveries of a session in one direction, as far as they are used here (pn_hash_t). */
typedef struct {
    void *key_class, *value_class, *entries;
    size_t capacity; /* proton looks at so many places if a disposition may name all deliveries */
} unsettled_t;

/* The deliveries of a session in one direction (pn_delivery_map_t). */
typedef struct {
    uint32_t next; /* the number of the next delivery */
    unsettled_t *unsettled;
} numbered_t;

/* Those that the peer sends, and those that it receives. */
typedef struct {
    numbered_t incoming, outgoing;
} session_deliveries_t;

/* Whether the fields of a session that was just made are where this file expects them. The other arguments
   are what proton's own functions return for it. */
bool sessions_are_known(void *session, void *connection, void *attachments);

/* The deliveries of a session. They are there as long as it is. */
session_deliveries_t *sessions_deliveries(void *session);

/* How many more transfers the peer takes on a session now (2.5.6), of those that proton has not written. */
size_t sessions_window(void *session);

/* The peer's channel for a session, if it has one. */
uint16_t sessions_channel(void *session);
