/* What Python sees of delivery_ids.c. Read by cffi, as runs.h. */

/* What is known of the session on one channel of the peer's. */
typedef struct {
    uint32_t next; /* the number that its next delivery gets */
    bool known;    /* it has had one: before, the peer chooses */
    bool divided;  /* one of its links is within a delivery of several frames: leave every transfer to Python */
} session_ids_t;

/* Go over frames, from `offset` on, as long as they are plain: transfers of one frame each, numbered in order, and frames that say nothing
   about numbers. Of the last one, the performative is enough. Gives where the first frame begins that is not plain, or too short to tell,
   or larger than `frame_max`; otherwise where the last one ends, be it in the data or beyond. */
size_t delivery_ids_walk(session_ids_t *sessions, size_t count, const char *data, size_t offset, size_t size, size_t frame_max);
