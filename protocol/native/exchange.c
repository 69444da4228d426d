/* One read of a connection, from the peer's bytes to its messages, and one write, each in one call.

   Otherwise, a read passes through some forty functions, which all ask whether there is anything for them to
   do. Here, those of C are asked one after the other, and if there is nothing for any of them, the whole
   frames of the read are taken. protocol/exchange.py says what these consist of. Everything else is left
   untouched for the engine's other functions.

   The functions of protocol._runs are passed as addresses, because cffi has its own module for them. So are
   its buffers: what is in them is used before anything else is called. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "sessions.h"

#include "delivery_ids.h"
#include "runs.h"

enum { CHANNELS_MAX = 64, HEADER_BYTES = 8 };

static struct {
    size_t (*delivery_ids_walk)(delivery_ids_t *, const char *, size_t, size_t);
    size_t (*frames_pass)(const char *, size_t, size_t, size_t);
    size_t (*large_skip)(const char *, size_t, size_t, size_t);
    size_t (*runs_push)(void *, const char *, size_t);
    void (*runs_take)(void *, run_t *, void **, uint32_t *, size_t, char *, size_t);
    void (*runs_settle)(void **, size_t, uint64_t);
    size_t (*runs_output)(void *, char *, size_t, ssize_t *);
    bool (*runs_is_empty)(void *);
    void **deliveries;
    uint32_t *sizes;
    char *bytes;
    size_t count_max, bytes_max, small_frame_bytes;
    uint64_t accepted;
} bound;

static PyObject *bind(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long functions[8], deliveries, sizes, bytes, accepted;
    Py_ssize_t count_max, bytes_max, small_frame_bytes;
    if (!PyArg_ParseTuple(arguments, "(KKKKKKKK)KKKnnnK", &functions[0], &functions[1], &functions[2],
                          &functions[3], &functions[4], &functions[5], &functions[6], &functions[7],
                          &deliveries, &sizes, &bytes, &count_max, &bytes_max, &small_frame_bytes, &accepted))
        return NULL;
    /* POSIX, unlike C, has functions and data at addresses of one kind. */
    *(void **)&bound.delivery_ids_walk = (void *)(uintptr_t)functions[0];
    *(void **)&bound.frames_pass = (void *)(uintptr_t)functions[1];
    *(void **)&bound.large_skip = (void *)(uintptr_t)functions[2];
    *(void **)&bound.runs_push = (void *)(uintptr_t)functions[3];
    *(void **)&bound.runs_take = (void *)(uintptr_t)functions[4];
    *(void **)&bound.runs_settle = (void *)(uintptr_t)functions[5];
    *(void **)&bound.runs_output = (void *)(uintptr_t)functions[6];
    *(void **)&bound.runs_is_empty = (void *)(uintptr_t)functions[7];
    bound.deliveries = (void **)(uintptr_t)deliveries;
    bound.sizes = (uint32_t *)(uintptr_t)sizes;
    bound.bytes = (char *)(uintptr_t)bytes;
    bound.count_max = (size_t)count_max;
    bound.bytes_max = (size_t)bytes_max;
    bound.small_frame_bytes = (size_t)small_frame_bytes;
    bound.accepted = accepted;
    Py_RETURN_NONE;
}

/* Where the last whole frame ends that begins at `begin` or later and ends at most `most` bytes behind it;
   `begin` if there is none. */
static size_t whole_frames_end(const uint8_t *data, size_t size, size_t begin, size_t most) {
    if (size - begin > most) size = begin + most;
    while (size - begin >= HEADER_BYTES) {
        const uint8_t *at = data + begin;
        size_t frame = (size_t)at[0] << 24 | (size_t)at[1] << 16 | (size_t)at[2] << 8 | at[3];
        if (frame < HEADER_BYTES || frame > size - begin) break;
        begin += frame;
    }
    return begin;
}

static bool are_transfers(const uint8_t *data, size_t size) {
    for (size_t offset = 0; offset < size;) { /* whole frames without an extended header */
        const uint8_t *at = data + offset;
        size_t frame = (size_t)at[0] << 24 | (size_t)at[1] << 16 | (size_t)at[2] << 8 | at[3];
        if (frame < HEADER_BYTES + 3 || memcmp(at + HEADER_BYTES, "\x00\x53\x14", 3)) return false;
        offset += frame;
    }
    return true;
}

/* Whether nothing in these bytes is for Python to look at before proton gets them. Counts their deliveries if
   so. */
static bool is_plain(delivery_ids_t *ids, const char *data, size_t size, bool transfers_only) {
    if (ids->count > CHANNELS_MAX || bound.large_skip(data, 0, size, size) != size ||
        bound.frames_pass(data, 0, size, bound.small_frame_bytes) != size ||
        (transfers_only && !are_transfers((const uint8_t *)data, size)))
        return false;
    delivery_ids_t ids_before = *ids;
    session_ids_t before[CHANNELS_MAX];
    memcpy(before, ids->sessions, ids->count * sizeof *before);
    if (bound.delivery_ids_walk(ids, data, 0, size) == size) return true;
    *ids = ids_before;
    memcpy(ids->sessions, before, ids->count * sizeof *before);
    return false;
}

static PyObject *payloads_of(const run_t *run) {
    PyObject *list = PyList_New((Py_ssize_t)run->count);
    const char *begin = bound.bytes;
    for (size_t place = 0; list && place < run->count; place++) {
        PyObject *payload = PyBytes_FromStringAndSize(begin, (Py_ssize_t)bound.sizes[place]);
        if (!payload) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)place, payload);
        begin += bound.sizes[place];
    }
    return list;
}

static PyObject *deliveries_of(const run_t *run) {
    size_t count = run->incoming && run->settled ? 0 : run->count; /* those are gone */
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t place = 0; list && place < count; place++) {
        PyObject *delivery = PyLong_FromVoidPtr(bound.deliveries[place]);
        if (!delivery) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)place, delivery);
    }
    return list;
}

static PyObject *read_plain(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 7 || !PyBytes_Check(arguments[3])) {
        PyErr_SetString(PyExc_TypeError, "see exchange.py");
        return NULL;
    }
    void *transport = PyLong_AsVoidPtr(arguments[0]), *collector = PyLong_AsVoidPtr(arguments[1]);
    delivery_ids_t *ids = PyLong_AsVoidPtr(arguments[2]);
    Py_ssize_t begin = PyLong_AsSsize_t(arguments[4]), most = PyLong_AsSsize_t(arguments[5]);
    int transfers_only = PyObject_IsTrue(arguments[6]);
    if (PyErr_Occurred()) return NULL;
    if (begin < 0 || begin > PyBytes_GET_SIZE(arguments[3]) || most < 0) {
        PyErr_SetString(PyExc_ValueError, "see exchange.py");
        return NULL;
    }
    const char *all = PyBytes_AS_STRING(arguments[3]), *data = all + begin;
    size_t end = whole_frames_end((const uint8_t *)all, (size_t)PyBytes_GET_SIZE(arguments[3]), (size_t)begin,
                                  (size_t)most);
    size_t size = end - (size_t)begin;
    if (!size || !is_plain(ids, data, size, transfers_only)) Py_RETURN_NONE;
    size_t pushed = bound.runs_push(transport, data, size);
    run_t run;
    bound.runs_take(collector, &run, bound.deliveries, bound.sizes, bound.count_max, bound.bytes,
                    bound.bytes_max);
    PyObject *payloads = run.incoming ? payloads_of(&run) : Py_NewRef(Py_None);
    PyObject *deliveries = payloads ? deliveries_of(&run) : NULL;
    PyObject *link = deliveries ? PyLong_FromVoidPtr(run.count ? run.link : NULL) : NULL;
    PyObject *until = link ? PyLong_FromSize_t(end) : NULL;
    PyObject *read = until ? PyTuple_New(6) : NULL;
    if (!read) {
        Py_XDECREF(payloads);
        Py_XDECREF(deliveries);
        Py_XDECREF(link);
        Py_XDECREF(until);
        return NULL;
    }
    PyTuple_SET_ITEM(read, 0, link);
    PyTuple_SET_ITEM(read, 1, deliveries);
    PyTuple_SET_ITEM(read, 2, payloads);
    PyTuple_SET_ITEM(read, 3, PyBool_FromLong(run.settled));
    PyTuple_SET_ITEM(read, 4, PyBool_FromLong(run.last && pushed == size));
    PyTuple_SET_ITEM(read, 5, until);
    return read;
}

static bool settle(PyObject *accepted) {
    Py_ssize_t count = PyList_GET_SIZE(accepted);
    void **deliveries = bound.deliveries;
    if ((size_t)count > bound.count_max && !(deliveries = PyMem_New(void *, count))) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t place = 0; place < count; place++)
        deliveries[place] = PyLong_AsVoidPtr(PyList_GET_ITEM(accepted, place));
    bool are_numbers = !PyErr_Occurred();
    if (are_numbers) bound.runs_settle(deliveries, (size_t)count, bound.accepted);
    if (deliveries != bound.deliveries) PyMem_Free(deliveries);
    return are_numbers;
}

static PyObject *write_all(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 3 || !PyList_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "see exchange.py");
        return NULL;
    }
    void *transport = PyLong_AsVoidPtr(arguments[0]), *collector = PyLong_AsVoidPtr(arguments[1]);
    if (PyErr_Occurred() || (PyList_GET_SIZE(arguments[2]) && !settle(arguments[2]))) return NULL;
    ssize_t left;
    size_t size = bound.runs_output(transport, bound.bytes, bound.bytes_max, &left);
    return Py_BuildValue("y#nO", bound.bytes, (Py_ssize_t)size, (Py_ssize_t)left,
                         bound.runs_is_empty(collector) ? Py_False : Py_True);
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_VARARGS, "Give this module the functions and buffers that it uses."},
    {"read", (PyCFunction)(void (*)(void))read_plain, METH_FASTCALL, "See protocol/exchange.py."},
    {"write", (PyCFunction)(void (*)(void))write_all, METH_FASTCALL, "See protocol/exchange.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_exchange", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__exchange(void) { return PyModule_Create(&definition); }
