/* Makes the references of new messages: the native side of broker/partition/references.py.
 *
 * A partition makes an object for each message that is sent to it. One call makes those of a whole run, with
 * all their slots, hidden from Python's cyclic garbage collector. `Reference.__init__` says what the slots
 * mean; it is the reference for this code, and the unit tests compare the two.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <string.h>

#include "slots.h"

enum slot {
    CHANGED, DELIVERY_COUNT, ENQUEUED_AT, EXPIRES_AT, FRAME, LEASE, LIVES_UNTIL, OFFSET, PAYLOAD, NUMBER,
    SIZE, STATE, SLOTS
};

static const char *const names[SLOTS] = {
    "changed", "delivery_count", "enqueued_at_ms", "expires_at_ms", "frame", "lease", "lives_until_ms",
    "offset", "payload", "sequence_number", "size", "state",
};

static PyTypeObject *reference_type; /* the class, whose slots are at these offsets; null until `learn` */
static Py_ssize_t offsets[SLOTS];

static PyObject *learn(PyObject *module, PyObject *type)
{
    (void)module;
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "learn takes a class");
        return NULL;
    }
    Py_ssize_t found[SLOTS];
    for (int slot = 0; slot < SLOTS; slot++) {
        if ((found[slot] = slot_named(type, names[slot])) < 0) return NULL;
    }
    memcpy(offsets, found, sizeof offsets);
    Py_XSETREF(reference_type, (PyTypeObject *)Py_NewRef(type));
    return Py_NewRef(type);
}

/* Fill an empty slot of a new object; takes over the reference to the value. */
static void fill(PyObject *object, enum slot slot, PyObject *value)
{
    *(PyObject **)((char *)object + offsets[slot]) = value;
}

/* What all messages of a run have in common, and the columns of the others: null for none. */
struct run {
    PyTypeObject *type;
    PyObject *frame, *enqueued_at, *no_deliveries, *active, *no_payload;
    PyObject *sizes, *expiries, *lives, *payloads;
};

static PyObject *value_of(PyObject *column, Py_ssize_t index)
{
    return column ? PyTuple_GET_ITEM(column, index) : Py_None;
}

/* The reference to one message; takes over those to its number and offset, which may be null. Null with an
   exception. */
static PyObject *new_reference(const struct run *run, Py_ssize_t index, PyObject *number, PyObject *offset)
{
    PyObject *object = number && offset ? run->type->tp_alloc(run->type, 0) : NULL;
    if (!object) {
        Py_XDECREF(number);
        Py_XDECREF(offset);
        return NULL;
    }
    PyObject *expiry = value_of(run->expiries, index);
    bool expires = expiry != Py_None && !(PyLong_Check(expiry) && _PyLong_Sign(expiry) == 0);
    fill(object, NUMBER, number);
    fill(object, OFFSET, offset);
    fill(object, FRAME, Py_NewRef(run->frame));
    fill(object, SIZE, Py_NewRef(PyTuple_GET_ITEM(run->sizes, index)));
    fill(object, ENQUEUED_AT, Py_NewRef(run->enqueued_at));
    fill(object, EXPIRES_AT, Py_NewRef(expires ? expiry : Py_None));
    fill(object, LIVES_UNTIL, Py_NewRef(value_of(run->lives, index)));
    fill(object, PAYLOAD,
         Py_NewRef(run->payloads ? PyTuple_GET_ITEM(run->payloads, index) : run->no_payload));
    fill(object, DELIVERY_COUNT, Py_NewRef(run->no_deliveries));
    fill(object, STATE, Py_NewRef(run->active));
    fill(object, LEASE, Py_NewRef(Py_None));
    fill(object, CHANGED, Py_NewRef(Py_None));
    if (PyType_IS_GC(run->type)) PyObject_GC_UnTrack(object);
    return object;
}

/* Make the references of all messages. False with an exception. */
static bool make_all(const struct run *run, unsigned long long number, long long offset, PyObject *references,
                     PyObject *numbers)
{
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(references); index++) {
        long long size = PyLong_AsLongLong(PyTuple_GET_ITEM(run->sizes, index));
        if (size < 0) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a size is not negative");
            return false;
        }
        PyObject *own = PyLong_FromUnsignedLongLong(number + (unsigned long long)index);
        PyObject *reference = new_reference(run, index, own, PyLong_FromLongLong(offset));
        if (!reference) return false;
        PyList_SET_ITEM(references, index, reference);
        PyList_SET_ITEM(numbers, index, Py_NewRef(own)); /* one object for each number */
        offset += size;
    }
    return true;
}

/* A column as a tuple, which nobody can change meanwhile, of `count` values; null for None, and with an
   exception. */
static PyObject *column_of(PyObject *values, Py_ssize_t count)
{
    if (values == Py_None) return NULL;
    PyObject *column = PySequence_Tuple(values);
    if (column && count >= 0 && PyTuple_GET_SIZE(column) != count) {
        PyErr_SetString(PyExc_ValueError, "a column has a value for each message");
        Py_CLEAR(column);
    }
    return column;
}

enum argument {
    TYPE, FIRST_NUMBER, OF_FRAME, FIRST_OFFSET, SIZES, AT, EXPIRIES, LIVES, PAYLOADS, STATE_OF_ALL, ARGUMENTS
};

static PyObject *make(PyObject *module, PyObject *const *given, Py_ssize_t arguments)
{
    (void)module;
    if (arguments != ARGUMENTS || !reference_type || !PyType_Check(given[TYPE])
        || !PyType_IsSubtype((PyTypeObject *)given[TYPE], reference_type)) {
        PyErr_SetString(PyExc_TypeError, "make takes the class of references, or one derived from it, and "
                                         "what is known of the messages");
        return NULL;
    }
    unsigned long long number = PyLong_AsUnsignedLongLong(given[FIRST_NUMBER]);
    long long offset = PyErr_Occurred() ? 0 : PyLong_AsLongLong(given[FIRST_OFFSET]);
    PyObject *sizes = PyErr_Occurred() ? NULL : column_of(given[SIZES], -1), *made = NULL;
    if (!sizes) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "messages have sizes");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(sizes);
    struct run run = {
        .type = (PyTypeObject *)given[TYPE], .frame = given[OF_FRAME], .enqueued_at = given[AT],
        .no_deliveries = PyLong_FromLong(0), .active = given[STATE_OF_ALL],
        .no_payload = PyBytes_FromStringAndSize(NULL, 0), .sizes = sizes,
        .expiries = column_of(given[EXPIRIES], count),
    };
    run.lives = PyErr_Occurred() ? NULL : column_of(given[LIVES], count);
    run.payloads = PyErr_Occurred() ? NULL : column_of(given[PAYLOADS], count);
    PyObject *references = PyErr_Occurred() ? NULL : PyList_New(count);
    PyObject *numbers = PyErr_Occurred() ? NULL : PyList_New(count);
    if (references && numbers && make_all(&run, number, offset, references, numbers))
        made = PyTuple_Pack(2, references, numbers);
    Py_XDECREF(references);
    Py_XDECREF(numbers);
    Py_XDECREF(run.payloads);
    Py_XDECREF(run.lives);
    Py_XDECREF(run.expiries);
    Py_XDECREF(run.no_payload);
    Py_XDECREF(run.no_deliveries);
    Py_DECREF(sizes);
    return made;
}

static PyMethodDef methods[] = {
    {"learn", learn, METH_O, "learn(type): this is the class of references. Returns it."},
    {"make", (PyCFunction)(void (*)(void))make, METH_FASTCALL,
     "make(type, first, frame, offset, sizes, enqueued_at_ms, expiries, lives, payloads, state): the "
     "references to messages, and their sequence numbers."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_new_references", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__new_references(void)
{
    return PyModule_Create(&definition);
}
