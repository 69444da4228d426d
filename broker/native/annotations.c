/* Builds the bytes in front of each message in a run of deliveries: the native side of
 * broker/message/annotations.py, which describes and explains them.
 *
 * It handles messages that can be sent as stored. Changed messages, and those whose sender set
 * delivery-annotations, are left to the Python code, which handles any message; tests/property compares the
 * two.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "values.h"

enum { HEAD_BYTES = 12, VERSION = 1, HAS_PRIORITY = 1, FORWARDED = 4 }; /* of a stored message */
enum { TOKEN_BYTES = 16, NUMBERS_ELEMENTS = 6 };

#define LOCK_SECTION "\x00\x53\x71\xC1\x24\x02\xA3\x10x-opt-lock-token\x98" /* up to the token */
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
    FRONT_BYTES_MAX = 32 + BYTES(LOCK_SECTION) + TOKEN_BYTES + BYTES(MAP32) + 4 + NUMBERS_BYTES
};

typedef struct {
    const uint8_t *stored, *token; /* token is null without a lock */
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

/* The delivery-annotations: the lock token, if any, in the byte order of a uuid (AMQP contract 5.3). */
static uint8_t *put_lock(uint8_t *to, const uint8_t *token)
{
    static const uint8_t order[8] = {3, 2, 1, 0, 5, 4, 7, 6};
    if (!token) return put(to, NO_LOCK_SECTION, BYTES(NO_LOCK_SECTION));
    to = put(to, LOCK_SECTION, BYTES(LOCK_SECTION));
    for (int place = 0; place < 8; place++) *to++ = token[order[place]];
    return put(to, token + 8, 8);
}

static PyObject *front_of(const delivery_t *delivery, const char *shared, size_t shared_bytes,
                          uint32_t shared_elements)
{
    uint8_t front[FRONT_BYTES_MAX];
    const uint8_t *head = delivery->stored;
    uint32_t own_pairs = (uint32_t)head[8] << 8 | head[9], own_bytes = (uint32_t)head[10] << 8 | head[11];
    bool forwarded = head[0] & FORWARDED; /* its own annotations begin with the original sequence number */
    uint8_t *to = put_lock(put_header(front, delivery), delivery->token);
    to = put_u32(put(to, MAP32, BYTES(MAP32)),
                 NUMBERS_BYTES - (forwarded ? ORIGINAL_BYTES : 0) + (uint32_t)shared_bytes + own_bytes);
    to = put_u32(to, NUMBERS_ELEMENTS - (forwarded ? 2 : 0) + shared_elements + 2 * own_pairs);
    to = put_i64(put(to, SEQUENCE_NUMBER, BYTES(SEQUENCE_NUMBER)), delivery->sequence_number);
    to = put_i64(put(to, ENQUEUED_TIME, BYTES(ENQUEUED_TIME)), delivery->enqueued_ms);
    if (!forwarded)
        to = put_i64(put(to, ENQUEUE_SEQUENCE_NUMBER, BYTES(ENQUEUE_SEQUENCE_NUMBER)),
                     delivery->sequence_number);
    size_t size = (size_t)(to - front);
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size + shared_bytes));
    if (made) put(put((uint8_t *)PyBytes_AS_STRING(made), front, size), shared, shared_bytes);
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

/* Read one message of the run. Returns 1 to handle it here, 0 to leave it to Python, -1 with an exception. */
static int read_delivery(PyObject *const *columns, Py_ssize_t index, delivery_t *delivery)
{
    PyObject *stored = PyList_GET_ITEM(columns[MESSAGES], index);
    if (!PyBytes_Check(stored)) {
        PyErr_SetString(PyExc_TypeError, "messages are bytes");
        return -1;
    }
    delivery->stored = (const uint8_t *)PyBytes_AS_STRING(stored);
    if (PyList_GET_ITEM(columns[CHANGED], index) != Py_None || PyBytes_GET_SIZE(stored) < HEAD_BYTES ||
        (delivery->stored[0] & ~FORWARDED) != VERSION)
        return 0;
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

static bool make_each(PyObject *const *columns, PyObject *shared, uint32_t shared_elements, PyObject *fronts,
                      PyObject *left)
{
    Py_ssize_t count = PyList_GET_SIZE(columns[MESSAGES]);
    for (Py_ssize_t index = 0; index < count; index++) {
        delivery_t delivery = {0};
        int can = read_delivery(columns, index, &delivery);
        if (can < 0) return false;
        PyObject *made = can ? front_of(&delivery, PyBytes_AS_STRING(shared),
                                        (size_t)PyBytes_GET_SIZE(shared), shared_elements)
                             : PyBytes_FromStringAndSize(NULL, 0);
        if (!made) return false;
        PyList_SET_ITEM(fronts, index, made);
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
    unsigned long shared_elements = PyLong_AsUnsignedLong(arguments[COLUMNS + 1]);
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
    if (made && left && make_each(columns, arguments[COLUMNS], (uint32_t)shared_elements, made, left))
        result = PyTuple_Pack(2, made, left);
    Py_XDECREF(made);
    Py_XDECREF(left);
    return result;
}

static PyMethodDef methods[] = {
    {"fronts", (PyCFunction)(void (*)(void))fronts, METH_FASTCALL,
     "fronts(messages, tokens, sequence_numbers, enqueued_at_ms, expires_at_ms, delivery_counts, changed, "
     "shared, shared_elements): what stands in front of each message, and the numbers of those that are left "
     "to Python."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_annotations", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__annotations(void)
{
    return PyModule_Create(&definition);
}
