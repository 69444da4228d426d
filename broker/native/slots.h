/* Where the objects of a Python class keep the value of a slot (`__slots__`): at the same offset in every
 * object of the class and of its subclasses. C code that knows the offset needs no attribute lookup.
 */
#ifndef PARTIBUS_SLOTS_H
#define PARTIBUS_SLOTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* The offset of a slot in bytes, or -1 with an exception: the class has no such attribute, or it is not a
 * slot that holds an object. */
static inline Py_ssize_t slot_of(PyObject *type, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(type, name);
    if (!found) return -1;
    Py_ssize_t offset = -1;
    if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == T_OBJECT_EX) offset = member->offset;
    }
    Py_DECREF(found);
    if (offset < 0) PyErr_Format(PyExc_TypeError, "%R is not a slot of %R", name, type);
    return offset;
}

static inline Py_ssize_t slot_named(PyObject *type, const char *name)
{
    PyObject *text = PyUnicode_FromString(name);
    Py_ssize_t offset = text ? slot_of(type, text) : -1;
    Py_XDECREF(text);
    return offset;
}

#endif
