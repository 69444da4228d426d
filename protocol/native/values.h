/* Walks encoded AMQP values (AMQP 1.0, 1.6) without decoding them: the native side of protocol/values.py, for
   all C code that reads or writes messages. */
#ifndef PARTIBUS_VALUES_H
#define PARTIBUS_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STEPS_MAX = 256 }; /* to skip one described value, as in Python */

static inline uint32_t u32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint8_t *put_u32(uint8_t *to, size_t number)
{
    for (int shift = 24; shift >= 0; shift -= 8) *to++ = (uint8_t)(number >> shift);
    return to;
}

/* Where the value at `at` ends; 0 if it reaches beyond `end` or its type is unknown. */
static inline size_t skip(const uint8_t *bytes, size_t at, size_t end)
{
    static const uint8_t widths[16] = {[4] = 1, [5] = 2, [6] = 3, [7] = 5, [8] = 9, [9] = 17};
    unsigned pending = 1;
    for (unsigned step = 0; step < STEPS_MAX && at < end; step++) {
        uint8_t constructor = bytes[at], high = constructor >> 4;
        size_t left = end - at, span;
        if (high >= 0xA) {
            if (high & 1) {
                if (left < 5) return 0;
                span = 5 + (size_t)u32(bytes + at + 1);
            } else {
                if (left < 2) return 0;
                span = 2 + (size_t)bytes[at + 1];
            }
        } else if (high >= 4) {
            span = widths[high];
        } else if (constructor == 0) {
            span = 1;
            pending += 2;
        } else {
            return 0;
        }
        if (span > left) return 0;
        at += span;
        if (!--pending) return at;
    }
    return 0;
}

/* Count the elements of the list or map from `value` to `end`, and set `at` to the first one. False if it is
   cut off. */
static inline bool elements(const uint8_t *bytes, size_t value, size_t end, size_t *count, size_t *at)
{
    if (bytes[value] == 0x45) {
        *count = 0;
        *at = value + 1;
    } else if (bytes[value] < 0xD0) {
        if (end - value < 3) return false;
        *count = bytes[value + 2];
        *at = value + 3;
    } else {
        if (end - value < 9) return false;
        *count = u32(bytes + value + 5);
        *at = value + 9;
    }
    return true;
}

/* Where the text of the string or symbol at `at` begins, which `skip` has passed; 0 if the value has another
   type. */
static inline size_t text_at(const uint8_t *bytes, size_t at)
{
    uint8_t constructor = bytes[at];
    size_t head = constructor == 0xA1 || constructor == 0xA3   ? 2
                  : constructor == 0xB1 || constructor == 0xB3 ? 5
                                                               : 0;
    return head ? at + head : 0;
}

#endif
