/* Finds the sections of a message (AMQP 1.0, 3.2): the native side of protocol/sections.py, which describes
   them, for all C code that reads whole messages. */
#ifndef PARTIBUS_SECTIONS_H
#define PARTIBUS_SECTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "values.h"

/* by descriptor from 0x70 on */
enum {
    HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA, SEQUENCE,
    VALUE, FOOTER, SECTIONS
};
enum { DESCRIPTOR_BASE = 0x70, SMALL_ULONG = 0x53 };

typedef struct {
    size_t begins[SECTIONS], values[SECTIONS], ends[SECTIONS];
    bool in_order;
} sections_t; /* `Sections` in Python */

static inline uint64_t big_endian(const uint8_t *at, size_t size)
{
    uint64_t number = 0;
    for (size_t place = 0; place < size; place++) number = number << 8 | at[place];
    return number;
}

static inline int numbered(uint64_t descriptor)
{
    uint64_t section = descriptor - DESCRIPTOR_BASE;
    return section < SECTIONS ? (int)section : SECTIONS;
}

/* The section that a descriptor from `at` to `end` names: a number of any type, or a symbol. SECTIONS if it
   is something else. */
static inline int named(const uint8_t *bytes, size_t at, size_t end)
{
    static const char *const names[SECTIONS] = {
        "amqp:header:list", "amqp:delivery-annotations:map", "amqp:message-annotations:map",
        "amqp:properties:list", "amqp:application-properties:map", "amqp:data:binary",
        "amqp:amqp-sequence:list", "amqp:amqp-value:*", "amqp:footer:map",
    };
    uint8_t constructor = bytes[at];
    size_t begin = at + 1;
    switch (constructor) {
    case 0x50: case 0x51: case 0x52: case 0x53: case 0x54: case 0x55: /* of 1 to 8 bytes; a negative number */
    case 0x60: case 0x61: case 0x70: case 0x71: case 0x80: case 0x81: /* is as wrong as a large one */
    case 0x83: return numbered(big_endian(bytes + begin, end - begin));
    case 0xA3: begin += 1; break;
    case 0xB3: begin += 4; break;
    default: return SECTIONS;
    }
    for (int section = HEADER; section < SECTIONS; section++)
        if (strlen(names[section]) == end - begin && !memcmp(names[section], bytes + begin, end - begin))
            return section;
    return SECTIONS;
}

static inline bool is_legal(int section, uint8_t constructor)
{
    switch (section) {
    case HEADER: case PROPERTIES: case SEQUENCE:
        return constructor == 0x45 || constructor == 0xC0 || constructor == 0xD0;
    case DATA:
        return constructor == 0xA0 || constructor == 0xB0;
    case VALUE:
        return constructor == 0x00 || constructor >= 0x40;
    default:
        return constructor == 0xC1 || constructor == 0xD1;
    }
}

typedef enum { FOUND, LEFT_TO_PYTHON, TOO_MANY } result_t;

static inline result_t find_all(const uint8_t *bytes, size_t size, size_t repeated_max, sections_t *found)
{
    size_t repeated = 0;
    int latest = HEADER;
    found->in_order = true;
    for (size_t at = 0; at < size;) {
        if (bytes[at] != 0) return LEFT_TO_PYTHON;
        bool is_short = size - at > 3 && bytes[at + 1] == SMALL_ULONG; /* nearly always */
        size_t value = is_short ? at + 3 : skip(bytes, at + 1, size);
        if (!value || value == size) return LEFT_TO_PYTHON;
        int section = is_short ? numbered(bytes[at + 2]) : named(bytes, at + 1, value);
        if (section == SECTIONS || !is_legal(section, bytes[value])) return LEFT_TO_PYTHON;
        size_t end = skip(bytes, value, size);
        if (!end) return LEFT_TO_PYTHON;
        if (section < latest) found->in_order = false;
        latest = section;
        if (!found->ends[section]) {
            found->begins[section] = at;
            found->values[section] = value;
        } else if (found->ends[section] != at || (section != DATA && section != SEQUENCE)) {
            return LEFT_TO_PYTHON;
        } else if (++repeated >= repeated_max) {
            return TOO_MANY;
        }
        found->ends[section] = at = end;
    }
    const size_t *ends = found->ends;
    bool is_of_one_kind = !ends[DATA] + !ends[SEQUENCE] + !ends[VALUE] >= 2; /* the body */
    return is_of_one_kind ? FOUND : LEFT_TO_PYTHON;
}

#endif
