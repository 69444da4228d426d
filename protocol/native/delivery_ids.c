/* Checks frame by frame whether the deliveries of a stream are numbered in order (AMQP 1.0 §2.6.12).

   Nearly all are, and need nothing more. protocol/lenience.py handles every other frame, including those with
   an unusual encoding. The bytes come from the peer, so nothing is read beyond the end of the frame or of the
   list of fields. No memory is allocated or kept. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "delivery_ids.h"

enum { HEADER_BYTES = 8, FLOW = 0x13, TRANSFER = 0x14, DISPOSITION = 0x15, RECEIVED = 0x23 };

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
    return fields->at[1] == 0x53 && fields->at[2] != RECEIVED;
}

/* Whether a disposition (§2.7.6), whose fields these are, concerns few deliveries and says something of
   them. False if that cannot be told: it is encoded in an unusual way, or not all of it has arrived. */
static bool is_narrow(span_t fields) {
    uint32_t listed, first, last;
    size_t bytes;
    if (!read_list_head(&fields, &listed, &bytes)) return false;
    if (listed < 3) return true; /* it names one delivery */
    bool is_receiver = left(&fields) >= 1 && fields.at[0] == 0x41;
    if (!skip_flag(&fields, true) || !read_uint(&fields, &first) || !read_uint(&fields, &last)) return false;
    if (is_receiver && first != last && !says_something(&fields, listed - 3)) return false;
    return last - first < WIDE_DISPOSITION || last - first > INT32_MAX;
}

/* Whether a disposition, whose fields these are, concerns one delivery, as far as this can be told. */
static bool names_one(span_t fields) {
    uint32_t listed, first, last;
    size_t bytes;
    if (!read_list_head(&fields, &listed, &bytes)) return false;
    if (listed < 3) return true;
    if (!skip_flag(&fields, true) || !read_uint(&fields, &first) || left(&fields) < 1) return false;
    return fields.at[0] == 0x40 || (read_uint(&fields, &last) && first == last);
}

/* Whether a frame of `size` bytes is plain, judged by the first `there` bytes, which have arrived. Counts a
   plain transfer. */
static bool is_plain(session_ids_t *sessions, size_t count, const uint8_t *frame, size_t size, size_t there) {
    size_t body = 4 * (size_t)frame[4];
    if (body < HEADER_BYTES || body > there || frame[5] != 0) return false;
    if (body == size) return true; /* an empty frame, sent to keep the connection alive */
    if (there - body < 4 || frame[body] != 0x00 || frame[body + 1] != 0x53) return false;
    uint8_t code = frame[body + 2];
    span_t fields = {frame + body + 3, frame + there};
    if (code == FLOW) return true;
    if (code == DISPOSITION)
        return size > LIGHT_DISPOSITION ? names_one(fields) : is_narrow(fields);
    size_t channel = (size_t)frame[6] << 8 | frame[7];
    if (code != TRANSFER || channel >= count || sessions[channel].divided) return false;

    uint32_t listed, number;
    size_t bytes;
    if (!read_list_head(&fields, &listed, &bytes) || bytes > left(&fields)) return false;
    fields.end = fields.at + bytes;
    session_ids_t *session = &sessions[channel];
    if (!read_transfer(&fields, listed, &number) || (session->known && number != session->next)) return false;
    session->known = true;
    session->next = number + 1;
    return true;
}

size_t delivery_ids_walk(session_ids_t *sessions, size_t count, const char *data, size_t offset, size_t size,
                         size_t frame_max) {
    const uint8_t *bytes = (const uint8_t *)data;
    while (offset < size && size - offset >= HEADER_BYTES) {
        size_t frame = u32(bytes + offset), there = size - offset;
        if (frame < HEADER_BYTES || frame > frame_max) break;
        if (!is_plain(sessions, count, bytes + offset, frame, frame < there ? frame : there)) break;
        offset += frame;
    }
    return offset;
}
