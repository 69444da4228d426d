/* The engine's work for each delivery, done for a run of deliveries in one call from Python.

   A call from Python into C releases and reacquires the interpreter's lock, which takes about 0.1 us, and
   proton's interface needs some 25 calls per message: more time than the calls' own work. This file has only
   the loops around those calls, for plain deliveries. Everything else (parts of messages, aborted or too
   large messages, messages sent with a state, other outcomes, links and sessions that come and go) stays in
   the collector for protocol/engine.py, which decides.

   Proton is linked into its own Python module, so its functions are passed as addresses. No memory is
   allocated or kept here. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "deliveries.h"
#include "runs.h"
#include "sessions.h"

typedef struct {
    size_t size;
    const char *start;
} bytes_t; /* pn_bytes_t */

/* name, result, parameters; signatures are checked by tests/unit/protocol/test_engine_surface.py */
#define PROTON(_)                                              \
    _(collector_peek, void *, (void *))                        \
    _(collector_pop, bool, (void *))                           \
    _(event_type, int, (void *))                               \
    _(event_delivery, void *, (void *))                        \
    _(delivery, void *, (void *, bytes_t))                     \
    _(delivery_link, void *, (void *))                         \
    _(delivery_readable, bool, (void *))                       \
    _(delivery_partial, bool, (void *))                        \
    _(delivery_aborted, bool, (void *))                        \
    _(delivery_pending, size_t, (void *))                      \
    _(delivery_settled, bool, (void *))                        \
    _(delivery_remote_state, uint64_t, (void *))               \
    _(delivery_update, void, (void *, uint64_t))               \
    _(delivery_settle, void, (void *))                         \
    _(delivery_abort, void, (void *))                          \
    _(link_state, int, (void *))                               \
    _(link_max_message_size, uint64_t, (void *))               \
    _(link_is_receiver, bool, (void *))                        \
    _(link_current, void *, (void *))                          \
    _(link_queued, int, (void *))                              \
    _(link_recv, ssize_t, (void *, char *, size_t))            \
    _(link_send, ssize_t, (void *, const char *, size_t))      \
    _(link_advance, bool, (void *))                            \
    _(transport_push, ssize_t, (void *, const char *, size_t)) \
    _(transport_pending, ssize_t, (void *))                    \
    _(transport_peek, ssize_t, (void *, char *, size_t))       \
    _(transport_pop, void, (void *, size_t))

#define POINTER(name, result, parameters) result(*name) parameters;
static struct {
    PROTON(POINTER)
} pn;

#define NAME(name, result, parameters) "pn_" #name,
const char *const runs_functions[] = {PROTON(NAME) NULL};

static int pn_transport_event, pn_attached;
static uint64_t pn_accepted;

void runs_bind(const uintptr_t *functions, int transport_event, int attached, uint64_t accepted) {
#define BIND(name, result, parameters) pn.name = (result(*) parameters) * functions++;
    PROTON(BIND)
    pn_transport_event = transport_event;
    pn_attached = attached;
    pn_accepted = accepted;
}

/* Take one message off its link if it is plain, matches the run and fits. */
static bool take_message(run_t *run, void *link, void *delivery, char *bytes, size_t room) {
    if (!pn.delivery_readable(delivery) || pn.delivery_partial(delivery) ||
        pn.delivery_remote_state(delivery))
        return false;
    size_t size = pn.delivery_pending(delivery);
    bool settled = pn.delivery_settled(delivery);
    if (size > pn.link_max_message_size(link) || size > room || (run->count && settled != run->settled))
        return false;
    /* proton reports an aborted message with one byte that does not exist */
    if (size == 1 && pn.delivery_aborted(delivery)) return false;
    if (size && pn.link_recv(link, bytes, size) != (ssize_t)size) return false;
    pn.link_advance(link);
    if (size > LARGE_BYTES) deliveries_trim(delivery);
    if (settled) pn.delivery_settle(delivery);
    run->settled = settled;
    run->bytes += size;
    return true;
}

/* Whether the peer's outcome is `accepted` and matches the run. If the link had a current delivery, this
   would be a transfer from the peer on our link. */
static bool take_outcome(run_t *run, void *link, void *delivery) {
    if (pn.delivery_remote_state(delivery) != pn_accepted || pn.link_current(link)) return false;
    bool settled = pn.delivery_settled(delivery);
    if (run->count && settled != run->settled) return false;
    run->settled = settled;
    return true;
}

void runs_take(void *collector, run_t *run, void **deliveries, uint32_t *sizes, size_t count_max, char *bytes,
               size_t bytes_max) {
    *run = (run_t){0};
    while (run->count < count_max) {
        void *event = pn.collector_peek(collector);
        if (!event) {
            run->last = true;
            return;
        }
        void *delivery = pn.event_delivery(event);
        if (!delivery) {
            if (pn.event_type(event) != pn_transport_event) return;
            /* ignore: pending output is checked anyway */
            pn.collector_pop(collector);
            continue;
        }
        void *link = pn.delivery_link(delivery);
        if (run->count ? run->link != link : pn.link_state(link) != pn_attached) return;
        if (pn.link_is_receiver(link)) {
            size_t before = run->bytes;
            if (!take_message(run, link, delivery, bytes + before, bytes_max - before)) return;
            run->incoming = true;
            sizes[run->count] = (uint32_t)(run->bytes - before);
        } else if (!take_outcome(run, link, delivery)) {
            return;
        }
        run->link = link;
        deliveries[run->count++] = delivery;
        pn.collector_pop(collector);
    }
}

bool runs_send(void *link, const messages_t *messages, bool settled, void **deliveries) {
    size_t skipped = messages->skipped;
    bool any_large = false;
    if (pn.link_current(link)) { /* unfinished for ever, see `runs_send_parts` */
        for (size_t i = 0; i < messages->count; i++)
            deliveries[i] = pn.delivery(link, (bytes_t){messages->tags[i].size, messages->tags[i].start});
        return false;
    }
    for (size_t i = 0; i < messages->count; i++) {
        span_t tag = messages->tags[i], front = messages->fronts[i];
        void *delivery = pn.delivery(link, (bytes_t){tag.size, tag.start});
        size_t sent = front.size;
        pn.link_send(link, front.start, front.size);
        if (messages->rests && messages->rests[i].size > skipped) {
            size_t size = messages->rests[i].size - skipped;
            pn.link_send(link, messages->rests[i].start + skipped, size);
            sent += size;
        }
        pn.link_advance(link);
        if (settled) pn.delivery_settle(delivery);
        deliveries[i] = delivery;
        any_large |= sent > LARGE_BYTES;
    }
    return any_large;
}

/* Have proton write what it has of a delivery; returns whether all of that is written. Proton writes nothing
   while its buffer for output is full. */
static bool is_written(void *delivery, output_t *output) {
    pn.transport_pending(output->transport);
    if (!pn.delivery_pending(delivery)) return true;
    ssize_t left;
    output->taken += runs_output(output->transport, output->bytes + output->taken,
                                 output->size - output->taken, &left);
    return !pn.delivery_pending(delivery);
}

/* Send all but the last part of the link's current delivery, of which proton has the first. */
static bool send_parts(void *link, void *delivery, span_t part, uint32_t count, output_t *output) {
    for (; count > 1; count--) {
        if (!is_written(delivery, output)) return false;
        pn.link_send(link, part.start, part.size);
    }
    return true;
}

bool runs_send_parts(void *link, const messages_t *messages, bool settled, void **deliveries,
                     output_t *output) {
    bool is_complete = !pn.link_current(link);
    for (size_t i = 0; i < messages->count; i++) {
        span_t tag = messages->tags[i], front = messages->fronts[i], rest = messages->rests[i];
        void *delivery = deliveries[i] = pn.delivery(link, (bytes_t){tag.size, tag.start});
        if (!is_complete) continue;
        pn.link_send(link, front.start, front.size);
        pn.link_send(link, rest.start, rest.size);
        if (messages->parts[i] > 1) {
            /* in each transfer (§2.7.5); to proton, a settled delivery is one without further parts */
            if (settled) deliveries_mark_settled(delivery, true);
            is_complete = send_parts(link, delivery, rest, messages->parts[i], output);
            if (settled) deliveries_mark_settled(delivery, false);
            if (!is_complete) continue;
        }
        pn.link_advance(link);
        if (settled) pn.delivery_settle(delivery);
    }
    return is_complete;
}

void runs_settle(void **deliveries, size_t count, uint64_t outcome) {
    deliveries_sort(deliveries, count);
    for (size_t i = 0; i < count; i++) {
        if (outcome) pn.delivery_update(deliveries[i], outcome);
        pn.delivery_settle(deliveries[i]);
    }
}

size_t runs_take_back(void **deliveries, size_t count) {
    size_t taken = 0;
    for (size_t i = 0; i < count; i++)
        if (!deliveries_is_begun(deliveries[i])) {
            sessions_unqueue(pn.delivery_link(deliveries[i]), 1);
            pn.delivery_abort(deliveries[i]);
            deliveries[taken++] = deliveries[i];
        }
    return taken;
}

void runs_drop_unwritten(void *link) {
    if (!pn.link_is_receiver(link) && pn.link_queued(link))
        sessions_uncount(link, deliveries_drop_all(sessions_first_delivery(link)));
}

size_t runs_push(void *transport, const char *bytes, size_t size) {
    size_t pushed = 0;
    while (pushed < size) {
        ssize_t taken = pn.transport_push(transport, bytes + pushed, size - pushed);
        if (taken <= 0) break;
        pushed += (size_t)taken;
    }
    return pushed;
}

size_t runs_output(void *transport, char *bytes, size_t size, ssize_t *left) {
    size_t taken = 0;
    for (;;) {
        ssize_t pending = pn.transport_pending(transport);
        *left = pending;
        if (pending <= 0 || (size_t)pending > size - taken) return taken;
        ssize_t count = pn.transport_peek(transport, bytes + taken, (size_t)pending);
        if (count <= 0) return taken;
        pn.transport_pop(transport, (size_t)count);
        taken += (size_t)count;
    }
}

bool runs_is_empty(void *collector) {
    for (void *event; (event = pn.collector_peek(collector)); pn.collector_pop(collector))
        if (pn.event_delivery(event) || pn.event_type(event) != pn_transport_event) return false;
    return true;
}
