/* Adds up sizes of messages: `sum(map(len, values))`, which is done several times for each message that comes
 * or goes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *total_bytes(PyObject *module, PyObject *values)
{
    (void)module;
    Py_ssize_t total = 0;
    if (!PyList_Check(values)) {
        PyErr_SetString(PyExc_TypeError, "a list of bytes is expected");
        return NULL;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(values); index++) {
        PyObject *each = PyList_GET_ITEM(values, index);
        if (!PyBytes_Check(each)) {
            PyErr_SetString(PyExc_TypeError, "a list of bytes is expected");
            return NULL;
        }
        total += PyBytes_GET_SIZE(each);
    }
    return PyLong_FromSsize_t(total);
}

static PyMethodDef methods[] = {
    {"total_bytes", total_bytes, METH_O, "total_bytes(values): the size of all of them."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_sizes", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__sizes(void)
{
    return PyModule_Create(&definition);
}
