/* Finds the sections of a message, and takes the data sections of its body out: the native side of
   protocol/sections.py, which describes them. The envelope of a batch has up to 16,384.

   It finds the sections of valid messages and refuses none but those with too many. A message that it does
   not understand, or that breaks a rule, is left to the Python code, which decides and words the refusal. So
   the Python code must find the same in every message that is understood here; tests/unit, tests/property and
   tests/fuzz compare the two. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "values.h"

enum {
    HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA, SEQUENCE,
    VALUE, FOOTER, SECTIONS
};
enum { DESCRIPTOR_BASE = 0x70 };

static const char *const names[SECTIONS] = {
    "amqp:header:list", "amqp:delivery-annotations:map", "amqp:message-annotations:map",
    "amqp:properties:list", "amqp:application-properties:map", "amqp:data:binary", "amqp:amqp-sequence:list",
    "amqp:amqp-value:*", "amqp:footer:map",
};

typedef struct {
    size_t begins[SECTIONS], values[SECTIONS], ends[SECTIONS];
    bool in_order;
} sections_t; /* `Sections` in Python */

static uint64_t big_endian(const uint8_t *at, size_t size) {
    uint64_t number = 0;
    for (size_t place = 0; place < size; place++) number = number << 8 | at[place];
    return number;
}

/* The section that a descriptor from `at` to `end` names: a number of any type, or a symbol. SECTIONS if it
   is something else. */
static int named(const uint8_t *bytes, size_t at, size_t end) {
    uint8_t constructor = bytes[at];
    size_t begin = at + 1;
    switch (constructor) {
    case 0x50: case 0x51: case 0x52: case 0x53: case 0x54: case 0x55: /* of 1 to 8 bytes; a negative number */
    case 0x60: case 0x61: case 0x70: case 0x71: case 0x80: case 0x81: /* is as wrong as a large one */
    case 0x83: {
        uint64_t number = big_endian(bytes + begin, end - begin);
        bool known = number >= DESCRIPTOR_BASE && number < DESCRIPTOR_BASE + SECTIONS;
        return known ? (int)(number - DESCRIPTOR_BASE) : SECTIONS;
    }
    case 0xA3: begin += 1; break;
    case 0xB3: begin += 4; break;
    default: return SECTIONS;
    }
    for (int section = HEADER; section < SECTIONS; section++)
        if (strlen(names[section]) == end - begin && !memcmp(names[section], bytes + begin, end - begin))
            return section;
    return SECTIONS;
}

static bool is_legal(int section, uint8_t constructor) {
    switch (section) {
    case HEADER: case PROPERTIES: case SEQUENCE:
        return constructor == 0x45 || constructor == 0xC0 || constructor == 0xD0;
    case DATA:
        return constructor == 0xA0 || constructor == 0xB0;
    case VALUE:
        return constructor == 0x00 || constructor >= 0x40;
    default:
        return constructor == 0xC1 || constructor == 0xD1;
    }
}

typedef enum { FOUND, LEFT_TO_PYTHON, TOO_MANY } result_t;

static result_t find_all(const uint8_t *bytes, size_t size, size_t repeated_max, sections_t *found) {
    size_t repeated = 0;
    int latest = HEADER;
    found->in_order = true;
    for (size_t at = 0; at < size;) {
        if (bytes[at] != 0) return LEFT_TO_PYTHON;
        size_t value = skip(bytes, at + 1, size);
        if (!value || value == size) return LEFT_TO_PYTHON;
        int section = named(bytes, at + 1, value);
        if (section == SECTIONS || !is_legal(section, bytes[value])) return LEFT_TO_PYTHON;
        size_t end = skip(bytes, value, size);
        if (!end) return LEFT_TO_PYTHON;
        if (section < latest) found->in_order = false;
        latest = section;
        if (!found->ends[section]) {
            found->begins[section] = at;
            found->values[section] = value;
        } else if (found->ends[section] != at || (section != DATA && section != SEQUENCE)) {
            return LEFT_TO_PYTHON;
        } else if (++repeated >= repeated_max) {
            return TOO_MANY;
        }
        found->ends[section] = at = end;
    }
    const size_t *ends = found->ends;
    bool is_of_one_kind = !ends[DATA] + !ends[SEQUENCE] + !ends[VALUE] >= 2; /* the body */
    return is_of_one_kind ? FOUND : LEFT_TO_PYTHON;
}

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
