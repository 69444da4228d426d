/* What Python sees of delivery_ids.c. Read by cffi, as runs.h. */

/* What is known of the session on one channel of the peer's. */
typedef struct {
    uint32_t next; /* the number that its next delivery gets */
    bool known;    /* it has had one: before, the peer chooses */
    bool divided;  /* one of its links is within a delivery of several frames: leave every transfer to Python */
} session_ids_t;

/* Go over whole frames, from `offset` on, as long as they are plain: transfers of one frame each, numbered in order, and frames that say
   nothing about numbers. Gives where the first one begins that is not plain, or has not come whole; `size` if there is none. */
size_t delivery_ids_walk(session_ids_t *sessions, size_t count, const char *data, size_t offset, size_t size);
