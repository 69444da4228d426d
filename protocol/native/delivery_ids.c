/* Checks frame by frame whether the deliveries of a stream are numbered in order (AMQP 1.0 §2.6.12), and
   whether those that it names exist.

   That holds for nearly all frames, and they need nothing more. protocol/lenience.py handles every other
   frame, including those with an unusual encoding. The bytes come from the peer, so nothing is read beyond
   the end of the frame or of the list of fields. No memory is allocated or kept. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "sessions.h"

#include "delivery_ids.h"

enum { HEADER_BYTES = 8, FLOW = 0x13, TRANSFER = 0x14, DISPOSITION = 0x15, NONE = 0, RECEIVED = 0x23 };

typedef struct {
    const uint8_t *at, *end;
} span_t;

static uint32_t u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static size_t left(const span_t *fields) { return (size_t)(fields->end - fields->at); }

/* A uint, in any of its three encodings. */
static bool read_uint(span_t *fields, uint32_t *value) {
    if (left(fields) < 1) return false;
    const uint8_t *at = fields->at;
    if (at[0] == 0x43) {
        *value = 0;
        fields->at += 1;
    } else if (at[0] == 0x52 && left(fields) >= 2) {
        *value = at[1];
        fields->at += 2;
    } else if (at[0] == 0x70 && left(fields) >= 5) {
        *value = u32(at + 1);
        fields->at += 5;
    } else {
        return false;
    }
    return true;
}

/* Skip a binary, or null. */
static bool skip_binary(span_t *fields) {
    if (left(fields) < 1) return false;
    size_t size;
    if (fields->at[0] == 0x40) {
        size = 1;
    } else if (fields->at[0] == 0xa0 && left(fields) >= 2) {
        size = 2 + (size_t)fields->at[1];
    } else if (fields->at[0] == 0xb0 && left(fields) >= 5) {
        size = 5 + (size_t)u32(fields->at + 1);
    } else {
        return false;
    }
    if (size > left(fields)) return false;
    fields->at += size;
    return true;
}

/* Skip a boolean of one byte, or null. */
static bool skip_flag(span_t *fields, bool may_be_true) {
    if (left(fields) < 1) return false;
    uint8_t code = fields->at[0];
    if (code != 0x40 && code != 0x42 && !(may_be_true && code == 0x41)) return false;
    fields->at += 1;
    return true;
}

/* Read the fields of a transfer (§2.7.5) that is a whole delivery: no `more`, not aborted, without a state or
   a settle mode. */
static bool read_transfer(span_t *fields, uint32_t count, uint32_t *number) {
    uint32_t ignored;
    if (count < 2 || count > 11) return false;
    if (!read_uint(fields, &ignored) || !read_uint(fields, number)) return false;
    if (count > 2 && !skip_binary(fields)) return false;
    if (count > 3) {
        if (left(fields) >= 1 && fields->at[0] == 0x40) {
            fields->at += 1;
        } else if (!read_uint(fields, &ignored)) {
            return false;
        }
    }
    if (count > 4 && !skip_flag(fields, true)) return false;  /* settled */
    if (count > 5 && !skip_flag(fields, false)) return false; /* more */
    for (uint32_t place = 6; place < count && place < 8; place++) { /* receiver's settle mode, state */
        if (left(fields) < 1 || fields->at[0] != 0x40) return false;
        fields->at += 1;
    }
    if (count > 8 && !skip_flag(fields, true)) return false;  /* resume */
    if (count > 9 && !skip_flag(fields, false)) return false; /* aborted */
    return true;
}

/* Read the head of the list of a performative's fields: how many there are, and how many bytes they
   take. */
static bool read_list_head(span_t *fields, uint32_t *listed, size_t *bytes) {
    if (left(fields) >= 3 && fields->at[0] == 0xc0 && fields->at[1] >= 1) {
        *bytes = fields->at[1] - 1;
        *listed = fields->at[2];
        fields->at += 3;
    } else if (left(fields) >= 9 && fields->at[0] == 0xd0 && u32(fields->at + 1) >= 4) {
        *bytes = u32(fields->at + 1) - 4;
        *listed = u32(fields->at + 5);
        fields->at += 9;
    } else {
        return false;
    }
    return true;
}

/* Whether the fields of a disposition (§2.7.6) behind the numbers, `listed` of them, settle the deliveries
   or have an outcome. Proton would look at each delivery for a state that is none (`received`), and nothing
   comes of it. */
static bool says_something(span_t *fields, uint32_t listed) {
    if (listed < 1 || left(fields) < 1) return false;
    if (fields->at[0] == 0x41) return true;
    if (!skip_flag(fields, false)) return false;
    if (listed < 2 || left(fields) < 3 || fields->at[0] != 0) return false;
    return fields->at[1] == 0x53 && fields->at[2] != NONE && fields->at[2] != RECEIVED;
}

/* Whether a number is before `end`. Numbers wrap around (RFC 1982). */
static bool is_before(uint32_t number, uint32_t end) { return end - number - 1 < INT32_MAX; }

/* Whether a disposition (§2.7.6), whose fields these are, names deliveries that exist, few of them (one
   if it `is_heavy`), and says something of them, and whether there is time for it. False if that cannot be
   told: it is encoded in an unusual way, or not all of it has arrived. Counts it if so. */
static bool pass_disposition(delivery_ids_t *ids, const session_ids_t *session, span_t fields,
                             bool is_heavy) {
    uint32_t listed, first, last, named = 0;
    size_t bytes;
    if (!read_list_head(&fields, &listed, &bytes) || listed < 2) return false;
    const uint8_t *begin = fields.at;
    bool is_receiver = left(&fields) >= 1 && fields.at[0] == 0x41;
    if (!skip_flag(&fields, true) || !read_uint(&fields, &first)) return false;
    last = first;
    /* Proton goes by the size of the list, and would find a `last` that is not counted. */
    if (listed == 2 && (size_t)(fields.at - begin) != bytes) return false;
    if (listed > 2 && left(&fields) >= 1 && fields.at[0] == 0x40) {
        fields.at += 1;
    } else if (listed > 2 && !read_uint(&fields, &last)) {
        return false;
    }
    if (!session->deliveries || (!is_receiver && !session->known)) return false;
    const session_deliveries_t *deliveries = session->deliveries;
    const numbered_t *numbered = is_receiver ? &deliveries->outgoing : &deliveries->incoming;
    uint32_t end = is_receiver ? numbered->next : session->next;
    if (!is_before(first, end) || !is_before(last, end)) return false;
    if (first != last) {
        if (is_heavy || last - first >= WIDE_DISPOSITION) return false;
        if (is_receiver && !says_something(&fields, listed - 3)) return false;
        named = last - first + 1;
    }
    size_t work = ids->work + named + numbered->unsettled->capacity / PLACES_PER_DELIVERY;
    if (work > WORK_AT_ONCE) return false;
    ids->work = (uint32_t)work;
    ids->named += named;
    return true;
}

/* Whether a frame of `size` bytes is plain, judged by the first `there` bytes, which have arrived. Counts a
   plain transfer or disposition. */
static bool is_plain(delivery_ids_t *ids, const uint8_t *frame, size_t size, size_t there) {
    size_t body = 4 * (size_t)frame[4];
    if (body < HEADER_BYTES || body > there || frame[5] != 0) return false;
    if (body == size) return true; /* an empty frame, sent to keep the connection alive */
    if (there - body < 4 || frame[body] != 0x00 || frame[body + 1] != 0x53) return false;
    uint8_t code = frame[body + 2];
    span_t fields = {frame + body + 3, frame + there};
    if (code == FLOW) return true;
    size_t channel = (size_t)frame[6] << 8 | frame[7];
    if (channel >= ids->count) return false;
    session_ids_t *session = &ids->sessions[channel];
    if (code == DISPOSITION) return pass_disposition(ids, session, fields, size > LIGHT_DISPOSITION);
    if (code != TRANSFER || session->divided) return false;

    uint32_t listed, number;
    size_t bytes;
    if (!read_list_head(&fields, &listed, &bytes) || bytes > left(&fields)) return false;
    fields.end = fields.at + bytes;
    if (!read_transfer(&fields, listed, &number) || (session->known && number != session->next)) return false;
    session->known = true;
    session->next = number + 1;
    ids->received++;
    return true;
}

size_t delivery_ids_walk(delivery_ids_t *ids, const char *data, size_t offset, size_t size) {
    const uint8_t *bytes = (const uint8_t *)data;
    while (offset < size && size - offset >= HEADER_BYTES) {
        size_t frame = u32(bytes + offset), there = size - offset;
        if (frame < HEADER_BYTES || frame > ids->frame_max) break;
        if (!is_plain(ids, bytes + offset, frame, frame < there ? frame : there)) break;
        offset += frame;
    }
    return offset;
}
