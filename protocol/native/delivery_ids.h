/* The declarations of delivery_ids.c for Python. Read by cffi, like runs.h. */

/* What is known about the session on one of the peer's channels. */
typedef struct {
    uint32_t next; /* the number that its next delivery gets */
    bool known;    /* it has had a delivery (the peer chooses the first number) */
    /* a delivery of several frames is unfinished on one of its links, so Python handles every transfer */
    bool divided;
} session_ids_t;

/* A disposition that concerns more deliveries than this is not plain. */
enum { WIDE_DISPOSITION = 256 };

/* Nor is a larger one than this, as a frame, unless it concerns one delivery: proton copies its state into
   each of them. */
enum { LIGHT_DISPOSITION = 128 };

/* Skip frames from `offset` on as long as they are plain: transfers of one frame each, numbered in order, and
   frames that do not concern numbers. Only the performative of the last frame has to be there. Returns the
   offset of the first frame that is not plain, has not arrived far enough to tell, or is larger than
   `frame_max`; otherwise the end of the last frame, which may lie beyond the data. */
size_t delivery_ids_walk(session_ids_t *sessions, size_t count, const char *data, size_t offset, size_t size,
                         size_t frame_max);
