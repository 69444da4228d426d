/* Converts a run of messages into their stored form: the native side of broker/message/stored.py, which
 * describes that form.
 *
 * One call walks all sections of all messages of a run, whatever their shape, and copies each message once.
 * It accepts valid messages and refuses none: a message that it does not understand, or that breaks a rule,
 * is left to the Python code, which decides and words the refusal. So the Python code must accept every
 * message accepted here, and produce the same bytes; tests/property and tests/fuzz compare the two.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "sections.h"
#include "values.h"

enum {
    HEAD_BYTES = 12, DELIVERY_HEAD_BYTES = 4, VERSION = 1, VERSION_WITH_DELIVERY_ANNOTATIONS = 2,
    HAS_PRIORITY = 1, HAS_TIME_TO_LIVE = 2,
    KEY_CHARACTERS_MAX = 128, METADATA_BYTES_MAX = 65536, PROPERTY_BYTES_MAX = 32768, SECTIONS_MAX = 16384,
    HEADER_FIELDS_MAX = 5, PROPERTIES_FIELDS_MAX = 13, GROUP_ID = 10,
    NULL_VALUE = 0x40
};

/* Annotations that the broker interprets or replaces: those that only the broker sets, and the sender's. A
   map that names one of them twice is invalid (AMQP 1.0, 1.6.23). */
enum { BROKERS = 8, PARTITION_KEY = BROKERS, VIA_PARTITION_KEY, SCHEDULED_TIME, RESERVED };

static const char *const reserved_names[RESERVED] = {
    "x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until", "x-opt-enqueue-sequence-number",
    "x-opt-partition-id", "x-opt-message-state", "x-opt-deadletter-source", "x-opt-lock-token",
    [PARTITION_KEY] = "x-opt-partition-key", [VIA_PARTITION_KEY] = "x-opt-via-partition-key",
    [SCHEDULED_TIME] = "x-opt-scheduled-enqueue-time",
};

/* Each name is there once, so they bound how often something is cut out or changed. */
enum {
    PIECES_MAX = BROKERS + 1 + 2, /* what is left around the broker's annotations, and around a lock token */
    BINARIES_MAX = 2 /* the keys that a sender may set */
};

typedef struct {
    const uint8_t *bytes;
    size_t begin, end;
} text_t;

typedef struct {
    size_t pairs, bytes, pieces; /* `pieces` is where they end in the list of all pieces */
} kept_t;

typedef struct {
    const uint8_t *bytes;
    size_t size, metadata_bytes;
    sections_t sections;
    uint8_t flags, priority;
    uint32_t ttl_ms;
    kept_t annotations, delivery_annotations; /* what is kept of them */
    size_t piece_begins[PIECES_MAX], piece_ends[PIECES_MAX];
    size_t binaries, binary_keys[BINARIES_MAX]; /* where binary keys are in the annotations that are kept */
    bool is_scheduled, has_id;
    int64_t scheduled_ms;
    /* of the properties: their number, and the extent of those after the message-id */
    size_t fields, rest_begin, rest_end;
    PyObject *session_id, *partition_key; /* str, or null */
} message_t;

/* --- values --------------------------------------------------------------------------------------------- */

/* Find the bytes of the string or symbol from `at` to `end`; false for a value of any other type. */
static bool text(const uint8_t *bytes, size_t at, size_t end, text_t *found)
{
    *found = (text_t){bytes, text_at(bytes, at), end};
    return found->begin;
}

static bool is_string(uint8_t constructor)
{
    return constructor == 0xA1 || constructor == 0xB1;
}

/* The text from `begin` to `end`; null, without an exception, if it is not UTF-8. */
static PyObject *decode_text(const uint8_t *bytes, size_t begin, size_t end)
{
    PyObject *decoded =
        PyUnicode_DecodeUTF8((const char *)bytes + begin, (Py_ssize_t)(end - begin), "strict");
    if (!decoded && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
    return decoded;
}

static bool is_ascii(const uint8_t *bytes, size_t begin, size_t end)
{
    while (begin < end && bytes[begin] < 0x80) begin++;
    return begin == end;
}

static bool is_text(const uint8_t *bytes, size_t begin, size_t end)
{
    if (is_ascii(bytes, begin, end)) return true;
    PyObject *decoded = decode_text(bytes, begin, end);
    Py_XDECREF(decoded);
    return decoded;
}

/* The string or binary at `at` as a key; null, without an exception, if it is not a valid key. */
static PyObject *key_at(const uint8_t *bytes, size_t at, size_t end)
{
    PyObject *decoded = decode_text(bytes, at + (bytes[at] < 0xB0 ? 2 : 5), end);
    if (decoded && PyUnicode_GET_LENGTH(decoded) > KEY_CHARACTERS_MAX) Py_CLEAR(decoded);
    return decoded;
}

/* --- sections ------------------------------------------------------------------------------------------- */

static size_t extent(const message_t *message, int section)
{
    return message->sections.ends[section] - message->sections.begins[section];
}

static size_t value_bytes(const message_t *message, int section)
{
    return message->sections.ends[section] - message->sections.values[section];
}

static bool has(const message_t *message, int section)
{
    return message->sections.ends[section];
}

/* Count the elements of a section, and set `at` to the first one and `end` behind the last. False if it is
   cut off. */
static bool enter(const message_t *message, int section, size_t *count, size_t *at, size_t *end)
{
    *end = message->sections.ends[section];
    return elements(message->bytes, message->sections.values[section], *end, count, at);
}

static bool read_header(message_t *message)
{
    const uint8_t *bytes = message->bytes;
    size_t count, at, end;
    if (!enter(message, HEADER, &count, &at, &end) || count > HEADER_FIELDS_MAX) return false;
    for (size_t number = 0; number < count; number++) {
        size_t behind = skip(bytes, at, end);
        if (!behind) return false;
        if (number == 1 && bytes[at] != NULL_VALUE) {
            if (bytes[at] != 0x50) return false;
            message->flags |= HAS_PRIORITY;
            message->priority = bytes[at + 1];
        }
        if (number == 2 && bytes[at] != NULL_VALUE) {
            switch (bytes[at]) {
            case 0x70: message->ttl_ms = u32(bytes + at + 1); break;
            case 0x52: message->ttl_ms = bytes[at + 1]; break;
            case 0x43: break;
            default: return false;
            }
            if (message->ttl_ms) message->flags |= HAS_TIME_TO_LIVE;
        }
        at = behind;
    }
    return at == end;
}

static bool equals(const text_t *key, const char *name)
{
    size_t size = strlen(name);
    return key->end - key->begin == size && !memcmp(key->bytes + key->begin, name, size);
}

/* The place in `reserved_names`; RESERVED for any other key. */
static int reserved(const text_t *key)
{
    int name = RESERVED;
    if (key->end - key->begin >= 6 && !memcmp(key->bytes + key->begin, "x-opt-", 6))
        for (name = 0; name < RESERVED && !equals(key, reserved_names[name]); name++) {}
    return name;
}

/* Keep the bytes from `begin` to `end`, a piece of some annotations. */
static void keep(message_t *message, kept_t *kept, size_t begin, size_t end)
{
    if (begin == end) return;
    message->piece_begins[kept->pieces] = begin;
    message->piece_ends[kept->pieces++] = end;
    kept->bytes += end - begin;
}

/* The value at `at` of an annotation that is a key; null, without an exception, if it is not a valid key.
   `place` is where the value will be in the annotations that are kept. A binary key will become a string:
   the Python client sends the keys of a message that it has received as binary. The two constructors differ
   in the last bit. */
static PyObject *annotated_key(message_t *message, size_t at, size_t end, size_t place)
{
    uint8_t constructor = message->bytes[at];
    if (!is_string(constructor | 1)) return NULL;
    if (!is_string(constructor)) message->binary_keys[message->binaries++] = place;
    return key_at(message->bytes, at, end);
}

/* Read an annotation, from `at` to `end`, that the sender may set. `place` is as in `annotated_key`. */
static bool read_own(message_t *message, int name, size_t at, size_t end, size_t place)
{
    const uint8_t *bytes = message->bytes;
    if (bytes[at] == NULL_VALUE) return true; /* has no meaning, but is kept */
    if (name == SCHEDULED_TIME) {
        if (bytes[at] != 0x83) return false;
        message->is_scheduled = true;
        message->scheduled_ms = (int64_t)((uint64_t)u32(bytes + at + 1) << 32 | u32(bytes + at + 5));
        return true;
    }
    PyObject *decoded = annotated_key(message, at, end, place);
    if (name == PARTITION_KEY) message->partition_key = decoded;
    else Py_XDECREF(decoded);
    return decoded;
}

static bool read_annotations(message_t *message)
{
    const uint8_t *bytes = message->bytes;
    size_t count, at, end;
    if (!enter(message, MESSAGE_ANNOTATIONS, &count, &at, &end) || count % 2) return false;
    size_t kept_from = at;
    kept_t *kept = &message->annotations;
    kept->pairs = count / 2;
    bool seen[RESERVED] = {false};
    for (size_t pairs = count / 2; pairs; pairs--) {
        size_t value = skip(bytes, at, end), behind = value ? skip(bytes, value, end) : 0;
        if (!behind) return false;
        text_t key;
        int name = text(bytes, at, value, &key) ? reserved(&key) : RESERVED;
        if (name < RESERVED) {
            if (seen[name]) return false;
            seen[name] = true;
            if (name < BROKERS) {
                keep(message, kept, kept_from, at);
                kept_from = behind;
                kept->pairs--;
            } else if (!read_own(message, name, value, behind, kept->bytes + value - kept_from)) {
                return false;
            }
        }
        at = behind;
    }
    keep(message, kept, kept_from, end);
    return at == end;
}

/* After the annotations. The lock token of a message that was received before is not kept. */
static bool read_delivery_annotations(message_t *message)
{
    const uint8_t *bytes = message->bytes;
    size_t count, at, end;
    if (!enter(message, DELIVERY_ANNOTATIONS, &count, &at, &end) || count % 2) return false;
    size_t kept_from = at;
    kept_t *kept = &message->delivery_annotations;
    *kept = (kept_t){.pairs = count / 2, .pieces = message->annotations.pieces};
    bool has_token = false;
    for (size_t pairs = count / 2; pairs; pairs--) {
        size_t value = skip(bytes, at, end), behind = value ? skip(bytes, value, end) : 0;
        if (!behind) return false;
        text_t key;
        if (text(bytes, at, value, &key) && equals(&key, "x-opt-lock-token")) {
            if (has_token) return false;
            has_token = true;
            keep(message, kept, kept_from, at);
            kept_from = behind;
            kept->pairs--;
        }
        at = behind;
    }
    keep(message, kept, kept_from, end);
    return at == end;
}

static bool check_message_id(const uint8_t *bytes, size_t at, size_t end)
{
    switch (bytes[at]) {
    case 0xA0: return end - at - 2 <= KEY_CHARACTERS_MAX;
    case 0xB0: return end - at - 5 <= KEY_CHARACTERS_MAX;
    case 0x98: case 0x80: case 0x53: case 0x44: return true;
    case 0xA1: case 0xB1: break;
    default: return false;
    }
    size_t text = at + (bytes[at] == 0xA1 ? 2 : 5);
    if (end - text <= KEY_CHARACTERS_MAX && is_ascii(bytes, text, end)) return true;
    PyObject *decoded = key_at(bytes, at, end);
    if (!decoded) return false;
    Py_DECREF(decoded);
    return true;
}

static bool read_properties(message_t *message)
{
    const uint8_t *bytes = message->bytes;
    size_t count, at, end;
    if (!enter(message, PROPERTIES, &count, &at, &end) || count > PROPERTIES_FIELDS_MAX) return false;
    message->fields = count;
    message->rest_begin = at;
    for (size_t number = 0; number < count; number++) {
        size_t behind = skip(bytes, at, end);
        if (!behind || behind - at > PROPERTY_BYTES_MAX) return false;
        if (number == 0) {
            message->rest_begin = behind;
            if (bytes[at] != NULL_VALUE) {
                if (!check_message_id(bytes, at, behind)) return false;
                message->has_id = true;
            }
        }
        if (number == GROUP_ID && bytes[at] != NULL_VALUE &&
            !(is_string(bytes[at]) && (message->session_id = key_at(bytes, at, behind))))
            return false;
        at = behind;
    }
    message->rest_end = at;
    return at == end;
}

static bool check_application_properties(const message_t *message)
{
    const uint8_t *bytes = message->bytes;
    size_t count, at, end;
    if (!enter(message, APPLICATION_PROPERTIES, &count, &at, &end) || count % 2) return false;
    for (; count; count -= 2) {
        size_t value = skip(bytes, at, end), behind = value ? skip(bytes, value, end) : 0;
        if (!behind || !is_string(bytes[at]) || behind - value > PROPERTY_BYTES_MAX) return false;
        /* As in Python, names are decoded only if a property may be too large */
        if (message->metadata_bytes > PROPERTY_BYTES_MAX && !is_text(bytes, text_at(bytes, at), value))
            return false;
        at = behind;
    }
    return at == end;
}

/* Whether the message is valid. False with an exception only if memory is exhausted. */
static bool walk(message_t *message)
{
    if (find_all(message->bytes, message->size, SECTIONS_MAX, &message->sections) != FOUND) return false;
    message->metadata_bytes = extent(message, DELIVERY_ANNOTATIONS) + extent(message, MESSAGE_ANNOTATIONS) +
                              extent(message, PROPERTIES) + extent(message, APPLICATION_PROPERTIES);
    if (message->metadata_bytes > METADATA_BYTES_MAX) return false;
    if (value_bytes(message, HEADER) > 1 && !read_header(message)) return false;
    if (value_bytes(message, MESSAGE_ANNOTATIONS) > 3 && !read_annotations(message)) return false;
    if (value_bytes(message, DELIVERY_ANNOTATIONS) > 3 && !read_delivery_annotations(message)) return false;
    if (has(message, APPLICATION_PROPERTIES) && !check_application_properties(message)) return false;
    if (has(message, PROPERTIES) && !read_properties(message)) return false;
    return !message->session_id || !message->partition_key ||
           PyUnicode_Compare(message->session_id, message->partition_key) == 0;
}

/* --- the stored form ------------------------------------------------------------------------------------ */

static uint8_t *put(uint8_t *to, const uint8_t *from, size_t size)
{
    memcpy(to, from, size);
    return to + size;
}

static uint8_t *put_pieces(uint8_t *to, const message_t *message, size_t first, size_t end)
{
    for (size_t piece = first; piece < end; piece++)
        to = put(to, message->bytes + message->piece_begins[piece],
                 message->piece_ends[piece] - message->piece_begins[piece]);
    return to;
}

/* The head and the sender's annotations. */
static uint8_t *put_front(uint8_t *to, const message_t *message)
{
    const kept_t *own = &message->annotations, *delivery = &message->delivery_annotations;
    uint8_t version = delivery->pairs ? VERSION_WITH_DELIVERY_ANNOTATIONS : VERSION;
    const uint8_t head[4] = {version, message->flags, message->priority, 0};
    to = put_u32(put(to, head, sizeof head), message->ttl_ms);
    uint8_t *annotations = put_u32(to, (uint32_t)(own->pairs << 16 | own->bytes));
    to = put_pieces(annotations, message, 0, own->pieces);
    for (size_t key = 0; key < message->binaries; key++) annotations[message->binary_keys[key]] |= 1;
    if (!delivery->pairs) return to;
    to = put_u32(to, (uint32_t)(delivery->pairs << 16 | delivery->bytes));
    return put_pieces(to, message, own->pieces, delivery->pieces);
}

/* The head, the sender's annotations, then the bare message from its properties on; `id`, if given, becomes
   the message-id. Null with an exception. */
static PyObject *stored_form(const message_t *message, const char *id, size_t id_bytes)
{
    const uint8_t *bytes = message->bytes;
    const size_t *begins = message->sections.begins, *ends = message->sections.ends;
    size_t rest = message->rest_end - message->rest_begin, list = 2 + id_bytes + rest;
    size_t properties = !id ? extent(message, PROPERTIES) : list < 255 ? 6 + list : 12 + list;
    const kept_t *delivery = &message->delivery_annotations;
    size_t size = HEAD_BYTES + message->annotations.bytes + properties;
    if (delivery->pairs) size += DELIVERY_HEAD_BYTES + delivery->bytes;
    for (int section = APPLICATION_PROPERTIES; section < SECTIONS; section++)
        size += extent(message, section);
    PyObject *stored = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!stored) return NULL;
    uint8_t *to = put_front((uint8_t *)PyBytes_AS_STRING(stored), message);
    if (id) {
        size_t count = message->fields ? message->fields : 1;
        if (list < 255) {
            const uint8_t begin[6] = {0x00, 0x53, 0x73, 0xC0, (uint8_t)(list + 1), (uint8_t)count};
            to = put(to, begin, sizeof begin);
        } else {
            to = put_u32(put_u32(put(to, (const uint8_t *)"\x00\x53\x73\xD0", 4), list + 4), count);
        }
        const uint8_t constructor[2] = {0xA1, (uint8_t)id_bytes};
        to = put(put(to, constructor, sizeof constructor), (const uint8_t *)id, id_bytes);
        to = put(to, bytes + message->rest_begin, rest);
    } else {
        to = put(to, bytes + begins[PROPERTIES], properties);
    }
    for (int section = APPLICATION_PROPERTIES; section < SECTIONS;) {
        size_t begin = begins[section], end = ends[section];
        while (++section < SECTIONS && (!ends[section] || begins[section] == end))
            /* copy adjacent sections at once; most are adjacent */
            if (ends[section]) end = ends[section];
        to = put(to, bytes + begin, end - begin);
    }
    return stored;
}

/* The stored form; a message without an id gets one from `new_id`. */
static PyObject *with_id(const message_t *message, PyObject *new_id)
{
    if (message->has_id) return stored_form(message, NULL, 0);
    PyObject *id = PyObject_CallNoArgs(new_id), *stored = NULL;
    if (!id) return NULL;
    Py_ssize_t size;
    const char *encoded = PyUnicode_AsUTF8AndSize(id, &size);
    if (encoded && size > 255)
        PyErr_SetString(PyExc_ValueError, "the id given to a message has at most 255 bytes");
    else if (encoded)
        stored = stored_form(message, encoded, (size_t)size);
    Py_DECREF(id);
    return stored;
}

/* --- a run of messages ---------------------------------------------------------------------------------- */

enum { DATA_COLUMN, TTL_COLUMN, SESSION_COLUMN, KEY_COLUMN, SCHEDULED_COLUMN, COLUMNS };

/* Put `value` into a column and take over its reference. The column is created for its first value. False
   with an exception. */
static bool put_into(PyObject **column, Py_ssize_t count, Py_ssize_t index, PyObject *value)
{
    if (value && !*column && (*column = PyList_New(count)))
        for (Py_ssize_t each = 0; each < count; each++) PyList_SET_ITEM(*column, each, Py_NewRef(Py_None));
    if (!value || !*column) {
        Py_XDECREF(value);
        return false;
    }
    return PyList_SetItem(*column, index, value) == 0;
}

static bool put_message(PyObject **columns, Py_ssize_t count, Py_ssize_t index, message_t *message,
                        PyObject *new_id)
{
    PyObject *stored = with_id(message, new_id);
    return stored && PyList_SetItem(columns[DATA_COLUMN], index, stored) == 0 &&
           (!message->ttl_ms ||
            put_into(columns + TTL_COLUMN, count, index, PyLong_FromUnsignedLong(message->ttl_ms))) &&
           (!message->session_id ||
            put_into(columns + SESSION_COLUMN, count, index, Py_NewRef(message->session_id))) &&
           (!message->partition_key ||
            put_into(columns + KEY_COLUMN, count, index, Py_NewRef(message->partition_key))) &&
           (!message->is_scheduled ||
            put_into(columns + SCHEDULED_COLUMN, count, index, PyLong_FromLongLong(message->scheduled_ms)));
}

static bool store_each(PyObject *payloads, PyObject *new_id, PyObject **columns, PyObject *left)
{
    Py_ssize_t count = PyTuple_GET_SIZE(payloads);
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *payload = PyTuple_GET_ITEM(payloads, index);
        if (!PyBytes_Check(payload)) {
            PyErr_SetString(PyExc_TypeError, "messages are bytes");
            return false;
        }
        message_t message = {.bytes = (const uint8_t *)PyBytes_AS_STRING(payload),
                             .size = (size_t)PyBytes_GET_SIZE(payload)};
        bool done;
        if (walk(&message)) {
            done = put_message(columns, count, index, &message, new_id);
        } else {
            PyObject *number = PyErr_Occurred() ? NULL : PyLong_FromSsize_t(index);
            done = number && PyList_Append(left, number) == 0;
            Py_XDECREF(number);
        }
        Py_XDECREF(message.session_id);
        Py_XDECREF(message.partition_key);
        if (!done) return false;
    }
    return true;
}

static PyObject *store(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "store takes messages and what gives an id");
        return NULL;
    }
    /* a tuple of our own, which a call of new_id cannot change */
    PyObject *payloads = PySequence_Tuple(arguments[0]);
    if (!payloads) return NULL;
    PyObject *columns[COLUMNS] = {NULL}, *left = PyList_New(0), *result = NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(payloads);
    if (left && (columns[DATA_COLUMN] = PyList_New(count))) {
        for (Py_ssize_t index = 0; index < count; index++)
            /* the shared empty bytes object */
            PyList_SET_ITEM(columns[DATA_COLUMN], index, PyBytes_FromStringAndSize(NULL, 0));
        if (store_each(payloads, arguments[1], columns, left)) {
            result = PyTuple_New(COLUMNS + 1);
            for (int column = 0; result && column < COLUMNS; column++)
                PyTuple_SET_ITEM(result, column, Py_NewRef(columns[column] ? columns[column] : Py_None));
            if (result) PyTuple_SET_ITEM(result, COLUMNS, Py_NewRef(left));
        }
    }
    for (int column = 0; column < COLUMNS; column++) Py_XDECREF(columns[column]);
    Py_XDECREF(left);
    Py_DECREF(payloads);
    return result;
}

static PyMethodDef methods[] = {
    {"store", (PyCFunction)(void (*)(void))store, METH_FASTCALL,
     "store(messages, new_id): the columns of `StoredRun`, and the numbers of the messages that are left "
     "to Python."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_stored", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__stored(void)
{
    return PyModule_Create(&definition);
}
