/* Finds the messages that a client has settled: the native side of broker/frontend/links/outgoing.py. The
 * unit tests compare it with the same in Python.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

enum { PARTITION_BYTES = 2 }; /* a lock token begins with the partition's number */

typedef struct {
    PyObject *by_partition;        /* the result */
    PyObject *deliveries, *tokens; /* of the latest partition, borrowed from it */
    long partition;                /* -1 if there is none yet */
} groups_t;

/* Make these the deliveries and tokens of a partition. */
static bool turn_to(groups_t *groups, long partition)
{
    PyObject *number = PyLong_FromLong(partition);
    PyObject *pair = number ? PyDict_GetItemWithError(groups->by_partition, number) : NULL;
    if (number && !pair && !PyErr_Occurred()) {
        PyObject *made = Py_BuildValue("[][]");
        if (made && PyDict_SetItem(groups->by_partition, number, made) == 0) pair = made;
        Py_XDECREF(made);
    }
    Py_XDECREF(number);
    if (!pair) return false;
    groups->partition = partition;
    groups->deliveries = PyTuple_GET_ITEM(pair, 0);
    groups->tokens = PyTuple_GET_ITEM(pair, 1);
    return true;
}

/* Move a delivery and its token from `unsettled` to its group; one that is not there is passed over. */
static bool move(PyObject *unsettled, PyObject *delivery, groups_t *groups)
{
    PyObject *token = PyDict_GetItemWithError(unsettled, delivery);
    if (!token) return !PyErr_Occurred();
    if (!PyBytes_Check(token) || PyBytes_GET_SIZE(token) < PARTITION_BYTES) {
        PyErr_SetString(PyExc_TypeError, "a lock token is expected");
        return false;
    }
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(token);
    long partition = (long)bytes[0] << 8 | bytes[1];
    return (partition == groups->partition || turn_to(groups, partition)) &&
           PyList_Append(groups->tokens, token) == 0 && PyList_Append(groups->deliveries, delivery) == 0 &&
           PyDict_DelItem(unsettled, delivery) == 0;
}

static PyObject *take(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (given != 2 || !PyDict_Check(arguments[0]) || !PyList_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "take takes a dictionary and a list");
        return NULL;
    }
    groups_t groups = {PyDict_New(), NULL, NULL, -1};
    if (!groups.by_partition) return NULL;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(arguments[1]); index++) {
        PyObject *delivery = Py_NewRef(PyList_GET_ITEM(arguments[1], index));
        bool done = move(arguments[0], delivery, &groups);
        Py_DECREF(delivery);
        if (!done) {
            Py_DECREF(groups.by_partition);
            return NULL;
        }
    }
    return groups.by_partition;
}

static PyMethodDef methods[] = {
    {"take", (PyCFunction)(void (*)(void))take, METH_FASTCALL,
     "take(unsettled, deliveries): remove these deliveries from those that are unsettled. Gives, by "
     "partition, those that were there, and the lock tokens of their messages."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_unsettled", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__unsettled(void)
{
    return PyModule_Create(&definition);
}
