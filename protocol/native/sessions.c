/* Reads how proton has numbered the deliveries of a session (python-qpid-proton 0.40.0).

   A peer may name deliveries that do not exist, and proton then looks at all of those that do. Which numbers
   exist is known to proton alone: it numbers a delivery when it writes it, which may be long after the broker
   has sent it. None of its functions tells, so this file relies on the layout of a session. At the start of
   each process, `sessions_are_known` checks the layout against proton. Nothing is written. */

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
} session_t; /* pn_session_t */

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

session_deliveries_t *sessions_deliveries(void *session) {
    return &((session_t *)session)->state.deliveries;
}

size_t sessions_window(void *session) {
    int32_t window = ((session_t *)session)->state.remote_incoming_window;
    return window > 0 ? (size_t)window : 0;
}

uint16_t sessions_channel(void *session) { return ((session_t *)session)->state.remote_channel; }
