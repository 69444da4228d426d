/* Builds the bytes in front of each message in a run of deliveries: the native side of
 * broker/message/annotations.py, which describes and explains them.
 *
 * A message whose sender set delivery-annotations is built whole: they are stored behind the sender's other
 * annotations, but are delivered in front of them. Changed messages are left to the Python code, which
 * handles any message; tests/property and tests/fuzz compare the two.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "values.h"

enum { /* of a stored message */
    HEAD_BYTES = 12, DELIVERY_HEAD_BYTES = 4, VERSION = 1, VERSION_WITH_DELIVERY_ANNOTATIONS = 2,
    HAS_PRIORITY = 1, FORWARDED = 4
};
enum { TOKEN_BYTES = 16, NUMBERS_ELEMENTS = 6 };

#define LOCK_TOKEN "\xA3\x10x-opt-lock-token\x98"
#define LOCK_SECTION "\x00\x53\x71\xC1\x24\x02" LOCK_TOKEN /* up to the token */
#define DELIVERY_MAP32 "\x00\x53\x71\xD1"
#define NO_LOCK_SECTION "\x00\x53\x71\xC1\x01\x00"
#define MAP32 "\x00\x53\x72\xD1"
#define SEQUENCE_NUMBER "\xA3\x15x-opt-sequence-number\x81"
#define ENQUEUED_TIME "\xA3\x13x-opt-enqueued-time\x83"
#define ENQUEUE_SEQUENCE_NUMBER "\xA3\x1Dx-opt-enqueue-sequence-number\x81"
#define BYTES(text) (sizeof(text) - 1)

enum {
    ORIGINAL_BYTES = BYTES(ENQUEUE_SEQUENCE_NUMBER) + 8,
    /* as counted in the map's size */
    NUMBERS_BYTES = 4 + BYTES(SEQUENCE_NUMBER) + 8 + BYTES(ENQUEUED_TIME) + 8 + ORIGINAL_BYTES,
    /* without the annotations that the run shares */
    FRONT_BYTES_MAX = 32 + BYTES(DELIVERY_MAP32) + 8 + BYTES(LOCK_TOKEN) + TOKEN_BYTES + BYTES(MAP32) + 4 +
                      NUMBERS_BYTES
};

typedef struct {
    const uint8_t *stored, *token; /* token is null without a lock */
    size_t size;
    /* the sender's own delivery-annotations; all that follows is used if there are any */
    uint32_t pairs, own_bytes;
    size_t own, bare; /* where they begin, and where the bare message does */
    int64_t sequence_number, enqueued_ms, expires_ms;
    bool expires;
    uint32_t delivery_count;
} delivery_t;

static uint8_t *put(uint8_t *to, const void *from, size_t size)
{
    memcpy(to, from, size);
    return to + size;
}

static uint8_t *put_i64(uint8_t *to, int64_t number)
{
    return put_u32(put_u32(to, (uint32_t)((uint64_t)number >> 32)), (uint32_t)(uint64_t)number);
}

/* The time to live in force, 0 for none. Enqueued time + time to live is when the message expires. */
static uint32_t ttl_of(const delivery_t *delivery)
{
    if (!delivery->expires) return u32(delivery->stored + 4);
    if (delivery->expires_ms <= delivery->enqueued_ms) return 1; /* 0 would mean no time to live */
    uint64_t ttl = (uint64_t)delivery->expires_ms - (uint64_t)delivery->enqueued_ms;
    return ttl < UINT32_MAX ? (uint32_t)ttl : UINT32_MAX;
}

/* A header section (AMQP 1.0, 3.2.1): durable, priority and ttl if set, first-acquirer, delivery-count. */
static uint8_t *put_header(uint8_t *to, const delivery_t *delivery)
{
    uint8_t *size = to + 4;
    uint32_t ttl = ttl_of(delivery);
    to = put(to, "\x00\x53\x70\xC0\x00\x05\x41", 7);
    if (delivery->stored[1] & HAS_PRIORITY) {
        *to++ = 0x50;
        *to++ = delivery->stored[2];
    } else {
        *to++ = 0x40;
    }
    if (ttl) {
        *to++ = 0x70;
        to = put_u32(to, ttl);
    } else {
        *to++ = 0x40;
    }
    if (delivery->delivery_count)
        to = put_u32(put(to, "\x42\x70", 2), delivery->delivery_count);
    else
        to = put(to, "\x41\x43", 2);
    *size = (uint8_t)(to - size - 1);
    return to;
}

/* The delivery-annotations up to the sender's own: the lock token, if any, in the byte order of a uuid (AMQP
   contract 5.3). */
static uint8_t *put_lock(uint8_t *to, const delivery_t *delivery)
{
    static const uint8_t order[8] = {3, 2, 1, 0, 5, 4, 7, 6};
    const uint8_t *token = delivery->token;
    if (delivery->pairs) {
        uint32_t size = 4 + delivery->own_bytes + (token ? BYTES(LOCK_TOKEN) + TOKEN_BYTES : 0);
        to = put_u32(put(to, DELIVERY_MAP32, BYTES(DELIVERY_MAP32)), size);
        to = put_u32(to, 2 * (delivery->pairs + (token ? 1 : 0)));
        if (!token) return to;
        to = put(to, LOCK_TOKEN, BYTES(LOCK_TOKEN));
    } else if (token) {
        to = put(to, LOCK_SECTION, BYTES(LOCK_SECTION));
    } else {
        return put(to, NO_LOCK_SECTION, BYTES(NO_LOCK_SECTION));
    }
    for (int place = 0; place < 8; place++) *to++ = token[order[place]];
    return put(to, token + 8, 8);
}

typedef struct {
    const char *bytes;
    size_t size;
    uint32_t elements;
} shared_t; /* the annotations that the run shares */

/* The message-annotations up to those that the run shares. */
static uint8_t *put_numbers(uint8_t *to, const delivery_t *delivery, const shared_t *shared)
{
    const uint8_t *head = delivery->stored;
    uint32_t own_pairs = (uint32_t)head[8] << 8 | head[9], own_bytes = (uint32_t)head[10] << 8 | head[11];
    bool forwarded = head[0] & FORWARDED; /* its own annotations begin with the original sequence number */
    to = put_u32(put(to, MAP32, BYTES(MAP32)),
                 NUMBERS_BYTES - (forwarded ? ORIGINAL_BYTES : 0) + (uint32_t)shared->size + own_bytes);
    to = put_u32(to, NUMBERS_ELEMENTS - (forwarded ? 2 : 0) + shared->elements + 2 * own_pairs);
    to = put_i64(put(to, SEQUENCE_NUMBER, BYTES(SEQUENCE_NUMBER)), delivery->sequence_number);
    to = put_i64(put(to, ENQUEUED_TIME, BYTES(ENQUEUED_TIME)), delivery->enqueued_ms);
    if (!forwarded)
        to = put_i64(put(to, ENQUEUE_SEQUENCE_NUMBER, BYTES(ENQUEUE_SEQUENCE_NUMBER)),
                     delivery->sequence_number);
    return to;
}

/* The bytes in front of the stored message; the whole delivery if its sender set delivery-annotations. */
static PyObject *front_of(const delivery_t *delivery, const shared_t *shared)
{
    uint8_t front[FRONT_BYTES_MAX];
    uint8_t *numbers = put_lock(put_header(front, delivery), delivery);
    uint8_t *behind = put_numbers(numbers, delivery, shared);
    size_t size = (size_t)(behind - front) + shared->size;
    if (delivery->pairs) size += delivery->size - HEAD_BYTES - DELIVERY_HEAD_BYTES;
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!made) return NULL;
    uint8_t *to = put((uint8_t *)PyBytes_AS_STRING(made), front, (size_t)(numbers - front));
    if (delivery->pairs) to = put(to, delivery->stored + delivery->own, delivery->own_bytes);
    to = put(put(to, numbers, (size_t)(behind - numbers)), shared->bytes, shared->size);
    if (delivery->pairs) {
        size_t annotations_end = delivery->own - DELIVERY_HEAD_BYTES;
        to = put(to, delivery->stored + HEAD_BYTES, annotations_end - HEAD_BYTES);
        put(to, delivery->stored + delivery->bare, delivery->size - delivery->bare);
    }
    return made;
}

/* --- a run of messages ---------------------------------------------------------------------------------- */

enum { MESSAGES, TOKENS, SEQUENCE_NUMBERS, ENQUEUED, EXPIRES, COUNTS, CHANGED, COLUMNS };

/* PyLong_AsLong reads the digits of a large number much faster than PyLong_AsLongLong. */
_Static_assert(sizeof(long) == sizeof(int64_t), "a long has 64 bits");

static bool number(PyObject *object, int64_t *found)
{
    *found = PyLong_AsLong(object);
    return *found != -1 || !PyErr_Occurred();
}

/* Find the sender's delivery-annotations. False if they cannot be where they should be. */
static bool find_delivery_annotations(delivery_t *delivery)
{
    const uint8_t *stored = delivery->stored;
    size_t at = HEAD_BYTES + ((size_t)stored[10] << 8 | stored[11]);
    delivery->own = at + DELIVERY_HEAD_BYTES;
    if (delivery->own > delivery->size) return false;
    delivery->pairs = u32(stored + at) >> 16;
    delivery->own_bytes = u32(stored + at) & 0xFFFF;
    delivery->bare = delivery->own + delivery->own_bytes;
    return delivery->pairs && delivery->bare <= delivery->size;
}

/* Read one message of the run. Returns 1 to handle it here, 0 to leave it to Python, -1 with an exception. */
static int read_delivery(PyObject *const *columns, Py_ssize_t index, delivery_t *delivery)
{
    PyObject *stored = PyList_GET_ITEM(columns[MESSAGES], index);
    if (!PyBytes_Check(stored)) {
        PyErr_SetString(PyExc_TypeError, "messages are bytes");
        return -1;
    }
    delivery->stored = (const uint8_t *)PyBytes_AS_STRING(stored);
    delivery->size = (size_t)PyBytes_GET_SIZE(stored);
    if (PyList_GET_ITEM(columns[CHANGED], index) != Py_None || delivery->size < HEAD_BYTES) return 0;
    switch (delivery->stored[0] & ~FORWARDED) {
    case VERSION: break;
    case VERSION_WITH_DELIVERY_ANNOTATIONS:
        if (!find_delivery_annotations(delivery)) return 0;
        break;
    default: return 0;
    }
    if (columns[TOKENS]) {
        PyObject *token = PyList_GET_ITEM(columns[TOKENS], index);
        if (!PyBytes_Check(token) || PyBytes_GET_SIZE(token) != TOKEN_BYTES) {
            PyErr_SetString(PyExc_ValueError, "a lock token has 16 bytes");
            return -1;
        }
        delivery->token = (const uint8_t *)PyBytes_AS_STRING(token);
    }
    PyObject *expires = PyList_GET_ITEM(columns[EXPIRES], index);
    delivery->expires = expires != Py_None;
    int64_t count;
    if (!number(PyList_GET_ITEM(columns[SEQUENCE_NUMBERS], index), &delivery->sequence_number) ||
        !number(PyList_GET_ITEM(columns[ENQUEUED], index), &delivery->enqueued_ms) ||
        (delivery->expires && !number(expires, &delivery->expires_ms)) ||
        !number(PyList_GET_ITEM(columns[COUNTS], index), &count))
        return -1;
    if (count < 0 || count > UINT32_MAX) return 0;
    delivery->delivery_count = (uint32_t)count;
    return 1;
}

/* Replace one item of `rests` by nothing; copies the list first if it still is `messages`. */
static bool take_out(PyObject **rests, PyObject *messages, Py_ssize_t index)
{
    if (*rests == messages) {
        PyObject *copy = PyList_GetSlice(messages, 0, PyList_GET_SIZE(messages));
        if (!copy) return false;
        Py_SETREF(*rests, copy);
    }
    PyObject *nothing = PyBytes_FromStringAndSize(NULL, 0);
    return nothing && PyList_SetItem(*rests, index, nothing) == 0;
}

static bool make_each(PyObject *const *columns, const shared_t *shared, PyObject *fronts, PyObject **rests,
                      PyObject *left)
{
    Py_ssize_t count = PyList_GET_SIZE(columns[MESSAGES]);
    for (Py_ssize_t index = 0; index < count; index++) {
        delivery_t delivery = {0};
        int can = read_delivery(columns, index, &delivery);
        if (can < 0) return false;
        PyObject *made = can ? front_of(&delivery, shared) : PyBytes_FromStringAndSize(NULL, 0);
        if (!made) return false;
        PyList_SET_ITEM(fronts, index, made);
        if ((!can || delivery.pairs) && !take_out(rests, columns[MESSAGES], index)) return false;
        if (!can) {
            PyObject *place = PyLong_FromSsize_t(index);
            bool done = place && PyList_Append(left, place) == 0;
            Py_XDECREF(place);
            if (!done) return false;
        }
    }
    return true;
}

static PyObject *fronts(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (given != COLUMNS + 2 || !PyBytes_Check(arguments[COLUMNS])) {
        PyErr_SetString(PyExc_TypeError, "fronts takes seven columns, the shared annotations and the number "
                                         "of their elements");
        return NULL;
    }
    shared_t shared = {.bytes = PyBytes_AS_STRING(arguments[COLUMNS]),
                       .size = (size_t)PyBytes_GET_SIZE(arguments[COLUMNS]),
                       .elements = (uint32_t)PyLong_AsUnsignedLong(arguments[COLUMNS + 1])};
    if (PyErr_Occurred()) return NULL;
    PyObject *columns[COLUMNS];
    for (int column = 0; column < COLUMNS; column++) {
        columns[column] = column == TOKENS && arguments[column] == Py_None ? NULL : arguments[column];
        if (columns[column] && !PyList_Check(columns[column])) {
            PyErr_SetString(PyExc_TypeError, "columns are lists");
            return NULL;
        }
        if (columns[column] && PyList_GET_SIZE(columns[column]) != PyList_GET_SIZE(columns[MESSAGES])) {
            PyErr_SetString(PyExc_ValueError, "columns differ in length");
            return NULL;
        }
    }
    PyObject *made = PyList_New(PyList_GET_SIZE(columns[MESSAGES])), *left = PyList_New(0), *result = NULL;
    PyObject *rests = Py_NewRef(columns[MESSAGES]);
    if (made && left && make_each(columns, &shared, made, &rests, left))
        result = PyTuple_Pack(3, made, rests, left);
    Py_XDECREF(made);
    Py_XDECREF(left);
    Py_DECREF(rests);
    return result;
}

static PyMethodDef methods[] = {
    {"fronts", (PyCFunction)(void (*)(void))fronts, METH_FASTCALL,
     "fronts(messages, tokens, sequence_numbers, enqueued_at_ms, expires_at_ms, delivery_counts, changed, "
     "shared, shared_elements): what stands in front of each message; the messages, empty where all of it "
     "stands in front; and the numbers of those that are left to Python."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_annotations", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__annotations(void)
{
    return PyModule_Create(&definition);
}
