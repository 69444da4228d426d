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

/* What a peer has said in its begin, its attach and its last flow. */
typedef struct {
    uint16_t channel;
    uint32_t handle;
    int32_t window, credit;
} peer_t;

/* Whether what `sessions_window`, `sessions_credit` and `sessions_channel` read is where this file expects
   it: on the first session of a connection and its first link, which the peer has opened, before our own
   begin and attach are written, or after that. */
bool sessions_links_are_known(void *session, void *link, bool is_written, const peer_t *peer);

/* What proton's own functions return for a sender's link, and for the bytes that wait in its session. */
typedef struct {
    size_t unsettled, bytes;
    int32_t credit, queued;
} queues_t;

/* The same for what `sessions_unqueue` and `sessions_uncount` change, and for the link's first delivery. */
bool sessions_queues_are_known(void *link, void *first, const queues_t *queues);

/* The deliveries of a session. They are there as long as it is. */
session_deliveries_t *sessions_deliveries(void *session);

/* How many more transfers the peer takes on a session now, of those that proton has not written: as proton
   counts, for which a window that is lowered below what is under way becomes a very large one. */
size_t sessions_window(void *session);

/* How many messages proton writes on a sender's link as soon as it has them, if the session's window is open
   and none is left from before. 0 until our begin and attach are written, and after an end or a detach. */
size_t sessions_credit(void *link);

/* So many messages that were sent on a link, of which none was written, never will be. Proton counts them as
   queued, and would wait for them before it writes our detach. */
void sessions_unqueue(void *link, size_t count);

/* Take `bytes` that were sent on a link and will never be written off proton's count of what waits in the
   session. */
void sessions_uncount(void *link, size_t bytes);

/* The oldest delivery of a link that proton still keeps, settled or not; null if there is none. */
void *sessions_first_delivery(void *link);

/* The peer's channel for a session, if it has one. */
uint16_t sessions_channel(void *session);
