/* Takes large payloads out of the frames on their way to proton (protocol/large_input.py says why), and finds
   where payloads belong in the frames that proton has written (protocol/large_output.py).

   The bytes come from the peer, so nothing is read beyond them. No memory is allocated or kept here. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "large_payloads.h"

enum { HEADER_BYTES = 8, NO_EXTENDED_HEADER = 2, AMQP_FRAME = 0 };
enum { DESCRIPTOR_BYTES = 3, LIST8 = 0xC0, LIST32 = 0xD0 };
enum { MARK_BYTES = 16, REFERENCE_BYTES = MARK_BYTES + 4 };
enum { HEAD_BYTES_MAX = 1024 }; /* of a frame's header and performative, which protocol/limits.py bounds */

static size_t number_at(const uint8_t *at) {
    return (size_t)at[0] << 24 | (size_t)at[1] << 16 | (size_t)at[2] << 8 | at[3];
}

static void put_number(char *to, size_t number) {
    for (int place = 0; place < 4; place++) to[place] = (char)(number >> (24 - 8 * place));
}

size_t large_skip(const char *data, size_t offset, size_t size, size_t end) {
    while (offset < end && offset < size && size - offset >= HEADER_BYTES) {
        size_t frame = number_at((const uint8_t *)data + offset);
        if (frame < HEADER_BYTES || frame >= LARGE_FRAME_BYTES_MIN) break;
        offset += frame;
    }
    return offset;
}

size_t large_payload(const char *frame, size_t size, size_t frame_bytes) {
    const uint8_t *at = (const uint8_t *)frame;
    enum { LIST = HEADER_BYTES + DESCRIPTOR_BYTES };
    if (frame_bytes < LARGE_FRAME_BYTES_MIN) return 0;
    if (size < LIST + 1 + 4) return size + 1;
    if (at[4] != NO_EXTENDED_HEADER || at[5] != AMQP_FRAME ||
        memcmp(at + HEADER_BYTES, "\x00\x53\x14", DESCRIPTOR_BYTES))
        return 0;
    size_t begin;
    if (at[LIST] == LIST8)
        begin = LIST + 2 + (size_t)at[LIST + 1];
    else if (at[LIST] == LIST32)
        begin = LIST + 5 + number_at(at + LIST + 1);
    else
        return 0;
    if (begin > HEAD_BYTES_MAX || begin > frame_bytes || frame_bytes - begin < LARGE_FRAME_BYTES_MIN / 2)
        return 0;
    return begin > size ? size + 1 : begin;
}

size_t large_take(const char *data, size_t offset, size_t size, size_t frame_max, const char *mark,
                  uint32_t first, char *heads, size_t heads_max, size_t *heads_bytes, payload_t *payloads,
                  size_t payloads_max, size_t *count) {
    *heads_bytes = *count = 0;
    while (*count < payloads_max && offset < size && size - offset >= HEADER_BYTES) {
        size_t frame = number_at((const uint8_t *)data + offset);
        if (frame > frame_max || frame > size - offset) break;
        size_t payload = large_payload(data + offset, frame, frame);
        if (!payload || payload > frame || payload + REFERENCE_BYTES > heads_max - *heads_bytes) break;
        char *head = heads + *heads_bytes;
        memcpy(head, data + offset, payload);
        put_number(head, payload + REFERENCE_BYTES);
        memcpy(head + payload, mark, MARK_BYTES);
        put_number(head + payload + MARK_BYTES, first + *count);
        *heads_bytes += payload + REFERENCE_BYTES;
        payloads[(*count)++] = (payload_t){offset + payload, offset + frame};
        offset += frame;
    }
    return offset;
}

size_t large_find(const char *data, size_t offset, size_t size, const char *mark, reference_t *references,
                  size_t references_max, size_t *next) {
    size_t count = 0;
    while (count < references_max && offset < size && size - offset >= HEADER_BYTES) {
        size_t frame = number_at((const uint8_t *)data + offset);
        if (frame < HEADER_BYTES || frame > size - offset) break;
        size_t reference = offset + frame - REFERENCE_BYTES;
        if (frame >= HEADER_BYTES + REFERENCE_BYTES && !memcmp(data + reference, mark, MARK_BYTES))
            references[count++] = (reference_t){
                offset, reference, (uint32_t)number_at((const uint8_t *)data + reference + MARK_BYTES)};
        offset += frame;
    }
    *next = offset;
    return count;
}
