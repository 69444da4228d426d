/* The declarations of runs.c for Python. cffi reads this file without a preprocessor, so it has declarations only. */

typedef struct {
    void *link;      /* whose deliveries these are */
    size_t count;    /* deliveries; 0: there is no run */
    size_t bytes;    /* of messages, all together; incoming links only */
    bool incoming;   /* messages that came; otherwise outcomes of what was sent */
    bool settled;    /* by the peer */
    bool last;       /* nothing is behind it in the collector; otherwise what is not plain, or another run */
} run_t;

/* The functions of proton's C core that are called, by name, to the first null. */
extern const char *const runs_functions[];

/* To be called first: their addresses, and the values of PN_TRANSPORT, of both states of an attached link, of PN_ACCEPTED. */
void runs_bind(const uintptr_t *functions, int transport_event, int attached, uint64_t accepted);

/* Take events off the collector while they are plain and alike: whole messages of one link, without a state, of its largest size at
   most, or outcomes `accepted` of one link. Of settled messages, `deliveries` are not to be used: they are gone. */
void runs_take(void *collector, run_t *run, void **deliveries, uint32_t *sizes, size_t count_max, char *bytes, size_t bytes_max);

/* Messages to be sent, in two parts that lie end to end each: what stands in front, and the rest, of which the first `skipped` bytes
   are left out (a rest may be empty). Each has a delivery tag of `tag_size` bytes. */
typedef struct {
    size_t count, tag_size, skipped;
    const char *tags, *fronts, *rests;
    const uint32_t *front_sizes, *rest_sizes; /* rest_sizes may be null: there are fronts only */
} messages_t;

/* Send them; gives their deliveries, of which settled ones are only good for `deliveries_trim`. True if any message is large. */
bool runs_send(void *link, const messages_t *messages, bool settled, void **deliveries);

/* Settle deliveries, with an outcome unless it is 0. */
void runs_settle(void *const *deliveries, size_t count, uint64_t outcome);

/* Hand over what the peer sent; gives how much was taken: less than all when the connection is closed or broken. */
size_t runs_push(void *transport, const char *bytes, size_t size);

/* Take what is to be written to the peer, as much as has room; gives how much. `left` becomes the size of the next part, which had none,
   0 when there is nothing more now, and less than 0 when nothing will ever follow. */
size_t runs_output(void *transport, char *bytes, size_t size, ssize_t *left);
