/* Hides objects from Python's cyclic garbage collector.
 *
 * Each collection walks every object that the collector tracks, and every entry of a tracked container. A
 * partition keeps an object and an entry for each waiting message, a million or more; walking them all blocks
 * the event loop for up to 100 ms. Their owner breaks every cycle they are in, so reference counting is
 * enough to free them.
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
        if (PyType_IS_GC(Py_TYPE(object)))
            PyObject_GC_UnTrack(object); /* no effect on an untracked object */
    }
    Py_RETURN_NONE;
}

static int is_not_collected(PyObject *object)
{
    (void)object;
    return 0;
}

/* A dictionary becomes tracked, with all its entries, as soon as it holds an object that the collector may
 * track. The dictionary asks `tp_is_gc` about that. Allocation and freeing go by the flag of the type
 * instead, so the objects still get a collector's header, start out tracked, and are freed as before.
 */
static PyObject *keep_untracked(PyObject *module, PyObject *type)
{
    (void)module;
    if (!PyType_Check(type) || !PyType_HasFeature((PyTypeObject *)type, Py_TPFLAGS_HEAPTYPE)) {
        PyErr_SetString(PyExc_TypeError, "keep_untracked takes a class");
        return NULL;
    }
    ((PyTypeObject *)type)->tp_is_gc = is_not_collected;
    return Py_NewRef(type);
}

static PyMethodDef methods[] = {
    {"untrack", untrack, METH_O,
     "untrack(objects): the collector does not look at the objects of this list any more."},
    {"keep_untracked", keep_untracked, METH_O,
     "keep_untracked(type): a dictionary is not tracked because of such objects."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_untracked", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__untracked(void)
{
    return PyModule_Create(&definition);
}
