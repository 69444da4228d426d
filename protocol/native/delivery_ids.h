/* The declarations of delivery_ids.c for Python. Read by cffi, like runs.h. */

/* What is known about the session on one of the peer's channels. */
typedef struct {
    uint32_t next; /* the number that its next delivery gets */
    bool known;    /* it has had a delivery (the peer chooses the first number) */
    /* a delivery of several frames is unfinished on one of its links, so Python handles every transfer */
    bool divided;
    session_deliveries_t *deliveries; /* proton's; null until the session is there */
} session_ids_t;

/* What is known about one connection. */
typedef struct {
    session_ids_t *sessions; /* by channel */
    size_t count;
    size_t frame_max;  /* larger frames are not plain */
    uint64_t received; /* how many deliveries the peer has sent */
    uint64_t named;    /* how many deliveries were named in dispositions of more than one */
    uint32_t work;     /* what dispositions have cost since others had their turn, in deliveries */
} delivery_ids_t;

/* A disposition that names more deliveries than this is not plain. */
enum { WIDE_DISPOSITION = 256 };

/* Nor is a larger one than this, as a frame, unless it names one delivery: proton copies its state into each
   of them. */
enum { LIGHT_DISPOSITION = 128 };

/* After so much `work`, others should have their turn: proton applies a disposition to 8,192 deliveries in
   7 ms. */
enum { WORK_AT_ONCE = 8192 };

/* Proton looks at so many places for unsettled deliveries in the time in which it applies a disposition to
   one. */
enum { PLACES_PER_DELIVERY = 1024 };

/* Skip frames from `offset` on as long as they are plain: transfers of one frame each, numbered in order;
   dispositions of a few deliveries that exist, as long as there are not too many; and frames that do not
   concern numbers. Only the performative of the last frame has to be there. Returns the offset of the first
   frame that is not plain, or has not arrived far enough to tell; otherwise the end of the last frame, which
   may lie beyond the data. */
size_t delivery_ids_walk(delivery_ids_t *ids, const char *data, size_t offset, size_t size);
