/* Skips the frames that protocol/frames.py need not inspect, which are nearly all.

   That file says what it looks for, and handles every frame that is not skipped here. The bytes come from the
   peer, so nothing is read beyond them. No memory is allocated or kept. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "frames.h"

enum { HEADER_BYTES = 8, NO_EXTENDED_HEADER = 2, LOOK_BYTES = 128, FORMAT_BYTES = 4 };

static bool has_batch_format(const char *at, size_t size) {
    const char *end = at + (size < LOOK_BYTES ? size : LOOK_BYTES);
    while (end - at >= FORMAT_BYTES && (at = memchr(at, 0x80, (size_t)(end - at) - (FORMAT_BYTES - 1)))) {
        if (!memcmp(at, "\x80\x01\x37\x00", FORMAT_BYTES)) return true;
        at++;
    }
    return false;
}

size_t frames_pass(const char *data, size_t offset, size_t size, size_t small) {
    while (size - offset >= HEADER_BYTES) {
        const uint8_t *head = (const uint8_t *)data + offset;
        size_t frame = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
        if (frame < HEADER_BYTES || frame > size - offset || head[4] != NO_EXTENDED_HEADER) break;
        if (frame > small && (frame < HEADER_BYTES + 4 || memcmp(head + HEADER_BYTES, "\x00\x53\x14\xC0", 4)))
            break;
        if (has_batch_format(data + offset, size - offset)) break;
        offset += frame;
    }
    return offset;
}
