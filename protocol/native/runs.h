/* The declarations of runs.c for Python. cffi reads this file without a preprocessor, so it has declarations
   only. */

typedef struct {
    void *link;      /* the link of the deliveries */
    size_t count;    /* number of deliveries; 0 if there is no run */
    size_t bytes;    /* size of all messages together; incoming links only */
    bool incoming;   /* received messages; otherwise outcomes of sent messages */
    bool settled;    /* the peer has settled the deliveries */
    /* nothing follows in the collector; otherwise an event that is not plain, or another run */
    bool last;
} run_t;

/* The names of the functions of proton's C core that this file calls; ends with a null. */
extern const char *const runs_functions[];

/* Call this first, with the addresses of these functions and the values of PN_TRANSPORT, of the two states of
   an attached link together, and of PN_ACCEPTED. */
void runs_bind(const uintptr_t *functions, int transport_event, int attached, uint64_t accepted);

/* Take events from the collector as long as they are plain and of the same kind: whole messages of one link,
   without a state and no larger than the link allows, or `accepted` outcomes of one link. Do not use the
   `deliveries` of settled messages: they are gone. */
void runs_take(void *collector, run_t *run, void **deliveries, uint32_t *sizes, size_t count_max, char *bytes,
               size_t bytes_max);

typedef struct {
    const char *start;
    size_t size;
} span_t; /* a bytes object, see spans.c */

/* Messages to send. Each consists of a front and a rest, without the first `skipped` bytes of the rest (which
   may be empty), and has a delivery tag. */
typedef struct {
    size_t count, skipped;
    const span_t *tags, *fronts, *rests; /* rests is null if there are only fronts */
    const uint32_t *parts; /* how often each rest is sent; null if all are sent once, as they are */
} messages_t;

/* Send the messages; returns their deliveries. Settled ones may only be passed to `deliveries_trim`. True if
   any message is large. */
bool runs_send(void *link, const messages_t *messages, bool settled, void **deliveries);

/* Where proton's output goes if the transport has no room for more of it. */
typedef struct {
    void *transport;
    char *bytes;
    size_t size, taken; /* how many bytes there is room for, and how many were taken from the transport */
} output_t;

/* Send messages of which some have several parts. Proton writes each part but the last one of a message
   before it gets the next, so each is a transfer of its own. The caller makes sure that proton can. Returns
   whether it did: if not, the message is unfinished for ever, and nothing more is sent on the link. */
bool runs_send_parts(void *link, const messages_t *messages, bool settled, void **deliveries,
                     output_t *output);

/* Settle deliveries in the order of their ids, which this sorts them by, with `outcome` unless that is 0. */
void runs_settle(void **deliveries, size_t count, uint64_t outcome);

/* Take back those of some unsettled deliveries of which proton has not begun to write any: it never writes
   them, and they are gone. Moves them to the front, and returns their number. Only for a link that is ending:
   the credit that they have used up does not come back. */
size_t runs_take_back(void **deliveries, size_t count);

/* Drop all unwritten bytes of the messages that were sent on a link. Only for a link on which proton writes
   nothing any more: proton frees those messages itself, but would go on counting their bytes. */
void runs_drop_unwritten(void *link);

/* Pass bytes from the peer to the transport. Returns how many it took: fewer than `size` if the connection is
   closed or broken. */
size_t runs_push(void *transport, const char *bytes, size_t size);

/* Copy pending output into `bytes`, as much as fits, and return its size. `left` is set to the size of the
   next part that did not fit, to 0 if there is no more output now, and below 0 if there will never be any. */
size_t runs_output(void *transport, char *bytes, size_t size, ssize_t *left);

/* Drop events about the transport from the front of the collector, which nobody needs; returns whether
   nothing else is there. */
bool runs_is_empty(void *collector);
