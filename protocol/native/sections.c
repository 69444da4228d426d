/* Finds the sections of a message, and takes the data sections of its body out: the native side of
   protocol/sections.py, which describes them. The envelope of a batch has up to 16,384.

   It finds the sections of valid messages and refuses none but those with too many. A message that it does
   not understand, or that breaks a rule, is left to the Python code, which decides and words the refusal. So
   the Python code must find the same in every message that is understood here; tests/unit, tests/property and
   tests/fuzz compare the two. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "sections.h"

static PyObject *offsets(const size_t *values) {
    PyObject *list = PyList_New(SECTIONS);
    for (Py_ssize_t section = 0; list && section < SECTIONS; section++) {
        PyObject *value = PyLong_FromSize_t(values[section]);
        if (!value) Py_CLEAR(list);
        else PyList_SET_ITEM(list, section, value);
    }
    return list;
}

static PyObject *find(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *message;
    Py_ssize_t sections_max;
    if (!PyArg_ParseTuple(arguments, "Sn", &message, &sections_max)) return NULL;
    sections_t found = {0};
    switch (find_all((const uint8_t *)PyBytes_AS_STRING(message), (size_t)PyBytes_GET_SIZE(message),
                     (size_t)sections_max, &found)) {
    case LEFT_TO_PYTHON: Py_RETURN_NONE;
    case TOO_MANY: return PyErr_Format(PyExc_OverflowError, "more than %zd sections", sections_max);
    case FOUND: break;
    }
    return Py_BuildValue("NNNO", offsets(found.begins), offsets(found.values), offsets(found.ends),
                         found.in_order ? Py_True : Py_False);
}

static PyObject *data(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *message;
    Py_ssize_t first, last;
    if (!PyArg_ParseTuple(arguments, "Snn", &message, &first, &last)) return NULL;
    const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(message);
    if (first < 0 || last < first || last > PyBytes_GET_SIZE(message)) {
        PyErr_SetString(PyExc_ValueError, "these sections are not in the message");
        return NULL;
    }
    PyObject *list = PyList_New(0);
    for (size_t at = (size_t)first, end = (size_t)last; list && at < end;) {
        size_t behind = skip(bytes, at, end), begin = at + (bytes[at] == 0xA0 ? 2 : 5);
        PyObject *content = NULL;
        if (behind < begin) PyErr_SetString(PyExc_ValueError, "these are not data sections");
        else content = PyBytes_FromStringAndSize((const char *)bytes + begin, (Py_ssize_t)(behind - begin));
        if (!content || PyList_Append(list, content)) Py_CLEAR(list);
        Py_XDECREF(content);
        at = behind < end ? skip(bytes, behind + 1, end) : end;
        if (!at) at = end; /* nothing of a section follows its descriptor */
    }
    return list;
}

static PyMethodDef methods[] = {
    {"find", find, METH_VARARGS,
     "find(message, sections_max): the begins, values and ends of its sections, and whether they are in "
     "order; None if Python has to look at them. Raises OverflowError if one is repeated too often."},
    {"data", data, METH_VARARGS,
     "data(message, first, last): the contents of data sections that were found before: the first one's "
     "value begins at `first`, and the last one ends at `last`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_sections", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__sections(void) { return PyModule_Create(&definition); }
