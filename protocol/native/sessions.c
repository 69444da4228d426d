/* Reads how proton has numbered the deliveries of a session, and what it would write on a link
   (python-qpid-proton 0.40.0).

   A peer may name deliveries that do not exist, and proton then looks at all of those that do. Which numbers
   exist is known to proton alone: it numbers a delivery when it writes it, which may be long after the broker
   has sent it. And proton writes a message at once only if begin and attach are written, the window is open,
   and there is credit by its own count, which may be less than that of pn_link_credit.

   None of its functions tells, so this file relies on the layouts of a session and a link. At the start of
   each process, `sessions_are_known` and the two functions after it check them against proton. Nothing is
   written, except by `sessions_unqueue` and `sessions_uncount`. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "sessions.h"

typedef struct {
    size_t size;
    char *start;
    void *name, *description, *info;
} condition_t; /* pn_condition_t */

typedef struct {
    condition_t condition, remote_condition;
    void *endpoint_next, *endpoint_prev, *transport_next, *transport_prev;
    int refcount;
    uint8_t state, type;
    bool modified, freed, referenced;
} endpoint_t; /* pn_endpoint_t */

typedef struct {
    endpoint_t endpoint;
    struct {
        session_deliveries_t deliveries;
        void *local_handles, *remote_handles;
        uint64_t disposition_code;
        uint32_t incoming_transfer_count;
        int32_t incoming_window, remote_incoming_window;
        uint32_t outgoing_transfer_count, outgoing_window;
        uint32_t disposition_first, disposition_last;
        uint32_t remote_handle_max;
        uint16_t local_channel, remote_channel;
        bool incoming_init, disposition, disposition_settled, disposition_type;
    } state;
    void *connection, *links, *freed, *context;
    size_t incoming_capacity;
    uint32_t local_handle_max;
    int32_t incoming_bytes, outgoing_bytes;
} session_t; /* pn_session_t */

typedef struct {
    void *address;
    struct {
        size_t size;
        char *start;
    } raw[4];
    void *values[4];
    uint32_t timeout;
    uint8_t durability, expiry_policy, type, distribution_mode;
    bool has_expiry_policy, dynamic;
} terminus_t; /* pn_terminus_t */

typedef struct {
    endpoint_t endpoint;
    terminus_t source, target, remote_source, remote_target;
    struct {
        uint32_t local_handle, remote_handle;
        int32_t delivery_count, credit;
    } state;
    void *name;
    session_t *session;
    void *unsettled_head, *unsettled_tail, *current, *context, *properties;
    struct {
        size_t size;
        char *start;
    } properties_raw;
    void *remote_properties;
    struct {
        size_t size;
        char *start;
    } remote_properties_raw;
    size_t unsettled_count;
    uint64_t max_message_size, remote_max_message_size;
    int32_t available, credit, queued;
} link_t; /* pn_link_t */

enum { CAPACITY_FIRST = 16, NO_CHANNEL = 0xffff };

static bool is_new(const numbered_t *numbered) {
    return numbered->next == 0 && numbered->unsettled && numbered->unsettled->capacity == CAPACITY_FIRST;
}

bool sessions_are_known(void *session, void *connection, void *attachments) {
    const session_t *known = session;
    return known->connection == connection && known->context == attachments &&
           known->state.local_channel == NO_CHANNEL && known->state.remote_channel == NO_CHANNEL &&
           known->state.remote_incoming_window == 0 && known->state.remote_handle_max == UINT32_MAX &&
           is_new(&known->state.deliveries.incoming) && is_new(&known->state.deliveries.outgoing);
}

bool sessions_links_are_known(void *session, void *link, bool is_written, const peer_t *peer) {
    const session_t *known = session;
    const link_t *known_link = link;
    return known_link->session == known && known->state.remote_channel == peer->channel &&
           known->state.remote_incoming_window == peer->window &&
           known->state.local_channel == (is_written ? 0 : NO_CHANNEL) &&
           known_link->state.local_handle == (is_written ? 0 : UINT32_MAX) &&
           known_link->state.remote_handle == peer->handle &&
           known_link->state.delivery_count == 0 && known_link->state.credit == peer->credit;
}

bool sessions_queues_are_known(void *link, void *first, const queues_t *queues) {
    const link_t *known = link;
    return known->unsettled_head == first && known->unsettled_count == queues->unsettled &&
           known->credit == queues->credit && known->queued == queues->queued &&
           (size_t)known->session->outgoing_bytes == queues->bytes;
}

session_deliveries_t *sessions_deliveries(void *session) {
    return &((session_t *)session)->state.deliveries;
}

size_t sessions_window(void *session) {
    /* Proton takes only 0 for shut, so a window of 2^31 or more is open although it counts as negative. */
    return (uint32_t)((session_t *)session)->state.remote_incoming_window;
}

size_t sessions_credit(void *link) {
    const link_t *known = link;
    if ((int16_t)known->session->state.local_channel < 0 || (int32_t)known->state.local_handle < 0) return 0;
    return known->state.credit > 0 ? (size_t)known->state.credit : 0;
}

void sessions_unqueue(void *link, size_t count) { ((link_t *)link)->queued -= (int32_t)count; }

void sessions_uncount(void *link, size_t bytes) {
    ((link_t *)link)->session->outgoing_bytes -= (int32_t)bytes;
}

void *sessions_first_delivery(void *link) { return ((link_t *)link)->unsettled_head; }

uint16_t sessions_channel(void *session) { return ((session_t *)session)->state.remote_channel; }
