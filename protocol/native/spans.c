/* Where bytes objects are in memory, for C code that reads many of them in one call (runs.c): cffi would take
   each by itself, or all of them copied into one. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

typedef struct {
    const char *start;
    size_t size;
} span_t; /* as in runs.h */

static bool is_list_of_bytes(PyObject *list) {
    bool fits = PyList_Check(list);
    for (Py_ssize_t index = 0; fits && index < PyList_GET_SIZE(list); index++)
        fits = PyBytes_Check(PyList_GET_ITEM(list, index));
    if (!fits) PyErr_SetString(PyExc_TypeError, "a list of bytes is expected");
    return fits;
}

static PyObject *spans(PyObject *module, PyObject *list) {
    (void)module;
    if (!is_list_of_bytes(list)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(list);
    PyObject *made = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(span_t));
    if (!made) return NULL;
    span_t *span = (span_t *)PyBytes_AS_STRING(made);
    for (Py_ssize_t index = 0; index < count; index++, span++) {
        PyObject *each = PyList_GET_ITEM(list, index);
        *span = (span_t){PyBytes_AS_STRING(each), (size_t)PyBytes_GET_SIZE(each)};
    }
    return made;
}

static PyObject *largest(PyObject *module, PyObject *list) {
    (void)module;
    if (!is_list_of_bytes(list)) return NULL;
    Py_ssize_t found = 0;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(list); index++) {
        Py_ssize_t size = PyBytes_GET_SIZE(PyList_GET_ITEM(list, index));
        if (size > found) found = size;
    }
    return PyLong_FromSsize_t(found);
}

static PyMethodDef methods[] = {
    {"spans", spans, METH_O,
     "spans(values): a `span_t` for each of some bytes objects. They are valid as long as the objects are."},
    {"largest", largest, METH_O, "largest(values): the size of the largest of some bytes objects."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_spans", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__spans(void) { return PyModule_Create(&definition); }
