/* Takes objects out of the view of Python's cyclic garbage collector.
 *
 * The collector looks at every object that it tracks, again and again. A partition keeps an object for each message that waits, a million and
 * more; looking at them all holds up the event loop for hundreds of milliseconds. They hold no cycle that their owner does not break
 * itself, so reference counting is enough to free them.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *untrack(PyObject *module, PyObject *objects)
{
    (void)module;
    if (!PyList_Check(objects)) {
        PyErr_SetString(PyExc_TypeError, "untrack takes a list");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(objects);
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *object = PyList_GET_ITEM(objects, index);
        if (PyObject_GC_IsTracked(object))
            PyObject_GC_UnTrack(object);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"untrack", untrack, METH_O, "untrack(objects): the collector does not look at the objects of this list any more."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_untracked", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__untracked(void)
{
    return PyModule_Create(&definition);
}
