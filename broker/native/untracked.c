/* Takes objects out of the view of Python's cyclic garbage collector.
 *
 * The collector looks at every object that it tracks, and at every entry of a container that it tracks, again and again. A partition keeps
 * an object and an entry for each message that waits, a million and more; looking at them all holds the event loop for up to 100 ms. They
 * are in no cycle that their owner does not break itself, so reference counting is enough to free them.
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
            PyObject_GC_UnTrack(object); /* does nothing for an object that is not tracked */
    }
    Py_RETURN_NONE;
}

static int is_not_collected(PyObject *object)
{
    (void)object;
    return 0;
}

/* A dictionary becomes tracked, with all its entries, when an object is put into it that the collector may track. `tp_is_gc` is what the
 * dictionary asks. The objects are still allocated with a collector's header, tracked at first, and freed as before: that goes by the flag
 * of their type.
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
    {"untrack", untrack, METH_O, "untrack(objects): the collector does not look at the objects of this list any more."},
    {"keep_untracked", keep_untracked, METH_O, "keep_untracked(type): a dictionary is not tracked because of such objects."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_untracked", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__untracked(void)
{
    return PyModule_Create(&definition);
}
