/* Reads and writes maps of properties: the native side of broker/message/changes.py, for messages with
 * thousands of them. The unit tests compare it with the same in Python.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "values.h"

enum { ELEMENTS_MAX = 65536 }; /* as in protocol/sections.py */

/* The bytes of the string or symbol from `at` to `end`; null if the value has another type. Both fit. */
static PyObject *key_at(const uint8_t *bytes, size_t at, size_t end)
{
    uint8_t constructor = bytes[at];
    size_t head = constructor == 0xA1 || constructor == 0xA3   ? 2
                  : constructor == 0xB1 || constructor == 0xB3 ? 5
                                                               : 0;
    if (!head || end - at < head) return NULL;
    return PyBytes_FromStringAndSize((const char *)bytes + at + head, (Py_ssize_t)(end - at - head));
}

/* Add the entry at `at` and return where the next one begins; 0 if it is not one, or with an exception. */
static size_t add_entry(PyObject *found, const uint8_t *bytes, size_t at, size_t end)
{
    size_t at_value = at < end ? skip(bytes, at, end) : 0;
    size_t behind = at_value && at_value < end ? skip(bytes, at_value, end) : 0;
    if (!behind) return 0;
    PyObject *key = key_at(bytes, at, at_value);
    if (!key) return 0;
    PyObject *value =
        PyBytes_FromStringAndSize((const char *)bytes + at_value, (Py_ssize_t)(behind - at_value));
    bool is_added = value && PyDict_SetItem(found, key, value) == 0;
    Py_DECREF(key);
    Py_XDECREF(value);
    return is_added ? behind : 0;
}

static PyObject *entries(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (given != 3 || !PyBytes_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "entries takes bytes and two offsets");
        return NULL;
    }
    const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(arguments[0]);
    Py_ssize_t value = PyLong_AsSsize_t(arguments[1]), end = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred()) return NULL;
    size_t count, at;
    if (value < 0 || end < 3 || end > PyBytes_GET_SIZE(arguments[0]) || value > end - 3 ||
        (bytes[value] != 0xC1 && bytes[value] != 0xD1) ||
        !elements(bytes, (size_t)value, (size_t)end, &count, &at) || count % 2 || count > ELEMENTS_MAX)
        Py_RETURN_NONE;
    PyObject *found = PyDict_New();
    if (!found) return NULL;
    for (size_t entry = 0; entry < count / 2 && at; entry++) at = add_entry(found, bytes, at, (size_t)end);
    if (at == (size_t)end) return found;
    Py_DECREF(found);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* The size of an entry's key with its head, and of its value; 0 with an exception if they are not bytes. */
static size_t sizes(PyObject *key, PyObject *value, size_t *value_bytes)
{
    if (!PyBytes_Check(key) || !PyBytes_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "keys and values are bytes");
        return 0;
    }
    size_t key_bytes = (size_t)PyBytes_GET_SIZE(key);
    *value_bytes = (size_t)PyBytes_GET_SIZE(value);
    return key_bytes + (key_bytes < 256 ? 2 : 5);
}

/* The size of all entries; false with an exception if the argument is no dictionary of bytes. */
static bool total_of(PyObject *given, size_t *total)
{
    if (!PyDict_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a dictionary is expected");
        return false;
    }
    PyObject *key, *value;
    Py_ssize_t place = 0;
    for (*total = 0; PyDict_Next(given, &place, &key, &value);) {
        size_t value_bytes, key_bytes = sizes(key, value, &value_bytes);
        if (!key_bytes) return false;
        *total += key_bytes + value_bytes;
    }
    return true;
}

static PyObject *total(PyObject *module, PyObject *given)
{
    (void)module;
    size_t size;
    return total_of(given, &size) ? PyLong_FromSize_t(size) : NULL;
}

static uint8_t *put_u32(uint8_t *at, size_t number)
{
    for (int shift = 24; shift >= 0; shift -= 8) *at++ = (uint8_t)(number >> shift);
    return at;
}

static uint8_t *put(uint8_t *at, PyObject *bytes)
{
    size_t size = (size_t)PyBytes_GET_SIZE(bytes);
    memcpy(at, PyBytes_AS_STRING(bytes), size);
    return at + size;
}

static PyObject *encoded(PyObject *module, PyObject *given)
{
    (void)module;
    size_t size;
    if (!total_of(given, &size)) return NULL;
    size_t count = 2 * (size_t)PyDict_GET_SIZE(given);
    bool is_short = count < 256 && size < 255; /* the size includes the byte that holds the count */
    if (size > UINT32_MAX - 4 || count > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a map is too large");
        return NULL;
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size + (is_short ? 3 : 9)));
    if (!made) return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(made);
    if (is_short) {
        *at++ = 0xC1;
        *at++ = (uint8_t)(size + 1);
        *at++ = (uint8_t)count;
    } else {
        *at++ = 0xD1;
        at = put_u32(put_u32(at, size + 4), count);
    }
    PyObject *key, *value;
    for (Py_ssize_t place = 0; PyDict_Next(given, &place, &key, &value);) {
        size_t key_bytes = (size_t)PyBytes_GET_SIZE(key);
        *at++ = key_bytes < 256 ? 0xA1 : 0xB1;
        if (key_bytes < 256)
            *at++ = (uint8_t)key_bytes;
        else
            at = put_u32(at, key_bytes);
        at = put(put(at, key), value);
    }
    return made;
}

static PyMethodDef methods[] = {
    {"entries", (PyCFunction)(void (*)(void))entries, METH_FASTCALL,
     "entries(buffer, value, end): the encoded values of the map from `value` to `end`, by the text of their "
     "keys; of several with one key the last. None if it is no such map."},
    {"encoded", encoded, METH_O, "encoded(entries): the map of such entries."},
    {"total", total, METH_O, "total(entries): how many bytes they take in a map, apart from its head."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_changes", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__changes(void)
{
    return PyModule_Create(&definition);
}
