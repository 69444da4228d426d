/* Frees memory that proton keeps for its deliveries (python-qpid-proton 0.40.0).

   Proton copies a message into a buffer of its delivery, and the peer's state of a delivery (properties to
   modify, an error) into lists of values. It keeps that memory after both are read, and keeps the delivery in
   a pool of its connection: a client that holds 5,000 messages of 1 MiB unsettled costs 5 GiB until it
   disconnects. None of proton's functions frees that memory while the connection lasts, so this file relies
   on the layout of a delivery. At the start of each process, `deliveries_are_known` checks the layout against
   proton.

   A delivery is a valid argument as long as its connection exists. A settled one is in the pool or in use for
   another message. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include "deliveries.h"

typedef struct {
    size_t size;
    char *start;
} raw_t; /* pn_bytes_t */

typedef struct {
    raw_t info_raw;
    void *name, *description, *info;
} condition_t; /* pn_condition_t */

typedef struct {
    condition_t condition;
    uint64_t type;
    void *data;
    raw_t data_raw;
    void *annotations;
    raw_t annotations_raw;
    uint64_t section_offset;
    uint32_t section_number;
    bool failed, undeliverable, settled;
} disposition_t; /* pn_disposition_t */

typedef struct {
    char *bytes;
    uint32_t capacity, start, size;
} buffer_t; /* pn_buffer_t */

typedef struct {
    disposition_t local, remote;
    raw_t tag;
    void *link, *unsettled_next, *unsettled_prev, *work_next, *work_prev, *tpwork_next, *tpwork_prev;
    struct {
        int32_t id;
        bool sending, sent, init;
    } state;
    buffer_t *bytes;
    void *context;
} delivery_t; /* pn_delivery_t */

static int (*pn_decref)(void *);

void deliveries_bind(uintptr_t decref) { pn_decref = (int (*)(void *))decref; }

bool deliveries_are_known(void *delivery, void *remote, void *info, void *data, void *annotations,
                          void *attachments, size_t pending) {
    delivery_t *known = delivery;
    if ((void *)&known->remote != remote || known->context != attachments) return false;
    const disposition_t *state = &known->remote;
    if (state->condition.info != info || state->data != data || state->annotations != annotations)
        return false;
    const buffer_t *bytes = known->bytes;
    return bytes && bytes->size == pending && bytes->capacity >= pending && !bytes->start;
}

static void release(void **object) {
    if (*object) pn_decref(*object);
    *object = NULL;
}

static void release_raw(raw_t *raw) {
    free(raw->start);
    *raw = (raw_t){0};
}

bool deliveries_mark_settled(void *delivery, bool settled) {
    disposition_t *local = &((delivery_t *)delivery)->local;
    bool before = local->settled;
    local->settled = settled;
    return before;
}

bool deliveries_is_begun(void *delivery) { return ((delivery_t *)delivery)->state.init; }

bool deliveries_trim(void *delivery) {
    buffer_t *bytes = ((delivery_t *)delivery)->bytes;
    if (bytes->size) return false;
    if (bytes->capacity > LARGE_BYTES) {
        free(bytes->bytes);
        *bytes = (buffer_t){0};
    }
    return true;
}

size_t deliveries_drop_all(void *first) {
    size_t dropped = 0;
    for (delivery_t *delivery = first; delivery; delivery = delivery->unsettled_next) {
        buffer_t *bytes = delivery->bytes;
        dropped += bytes->size;
        bytes->size = bytes->start = 0;
        deliveries_trim(delivery);
    }
    return dropped;
}

void deliveries_forget(void *delivery) {
    disposition_t *state = &((delivery_t *)delivery)->remote;
    release_raw(&state->condition.info_raw);
    release(&state->condition.name);
    release(&state->condition.description);
    release(&state->condition.info);
    release(&state->data);
    release_raw(&state->data_raw);
    release(&state->annotations);
    release_raw(&state->annotations_raw);
    deliveries_trim(delivery);
}

size_t deliveries_trim_all(void **deliveries, size_t count) {
    size_t left = 0;
    for (size_t i = 0; i < count; i++)
        if (!deliveries_trim(deliveries[i])) deliveries[left++] = deliveries[i];
    return left;
}

/* Ids wrap around (RFC 1982); those of unsettled deliveries lie close together. */
static int32_t order(const void *one, const void *other) {
    return (int32_t)((uint32_t)((const delivery_t *)one)->state.id -
                     (uint32_t)((const delivery_t *)other)->state.id);
}

static int compare(const void *one, const void *other) {
    int32_t difference = order(*(void *const *)one, *(void *const *)other);
    return (difference > 0) - (difference < 0);
}

void deliveries_sort(void **deliveries, size_t count) {
    for (size_t i = 1; i < count; i++)
        if (order(deliveries[i - 1], deliveries[i]) > 0) {
            qsort(deliveries, count, sizeof *deliveries, compare);
            return;
        }
}
