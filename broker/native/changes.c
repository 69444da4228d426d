/* Reads and writes maps of properties: the native side of broker/message/changes.py, for messages with
 * thousands of them. The unit tests compare it with the same in Python.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "values.h"

enum { ELEMENTS_MAX = 65536 }; /* as in protocol/sections.py */

/* Add the entry at `at` and return where the next one begins; 0 if it is not one, or with an exception. */
static size_t add_entry(PyObject *found, const uint8_t *bytes, size_t at, size_t end)
{
    size_t at_value = at < end ? skip(bytes, at, end) : 0;
    size_t behind = at_value && at_value < end ? skip(bytes, at_value, end) : 0;
    if (!behind) return 0;
    size_t at_text = text_at(bytes, at);
    if (!at_text) return 0;
    PyObject *key =
        PyBytes_FromStringAndSize((const char *)bytes + at_text, (Py_ssize_t)(at_value - at_text));
    if (!key) return 0;
    PyObject *value =
        PyBytes_FromStringAndSize((const char *)bytes + at_value, (Py_ssize_t)(behind - at_value));
    bool is_added = value && PyDict_SetItem(found, key, value) == 0;
    Py_DECREF(key);
    Py_XDECREF(value);
    return is_added ? behind : 0;
}

typedef struct {
    const uint8_t *bytes;
    size_t at, end, count; /* of entries */
} map_t;

/* Find the map that a buffer and two offsets name: 1, or 0 if it is none, or -1 with an exception. */
static int find_map(PyObject *const *arguments, map_t *map)
{
    if (!PyBytes_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "bytes and two offsets are expected");
        return -1;
    }
    Py_ssize_t value = PyLong_AsSsize_t(arguments[1]), end = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred()) return -1;
    map->bytes = (const uint8_t *)PyBytes_AS_STRING(arguments[0]);
    map->end = (size_t)end;
    if (value < 0 || end < 3 || end > PyBytes_GET_SIZE(arguments[0]) || value > end - 3 ||
        (map->bytes[value] != 0xC1 && map->bytes[value] != 0xD1) ||
        !elements(map->bytes, (size_t)value, map->end, &map->count, &map->at) || map->count % 2 ||
        map->count > ELEMENTS_MAX)
        return 0;
    map->count /= 2;
    return 1;
}

static PyObject *entries(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    map_t map;
    int is_map = given == 3 ? find_map(arguments, &map) : -1;
    if (given != 3) PyErr_SetString(PyExc_TypeError, "entries takes bytes and two offsets");
    if (is_map < 0) return NULL;
    if (!is_map) Py_RETURN_NONE;
    PyObject *found = PyDict_New();
    if (!found) return NULL;
    size_t at = map.at;
    for (size_t entry = 0; entry < map.count && at; entry++) at = add_entry(found, map.bytes, at, map.end);
    if (at == map.end) return found;
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

static uint8_t *put(uint8_t *at, PyObject *bytes)
{
    size_t size = (size_t)PyBytes_GET_SIZE(bytes);
    memcpy(at, PyBytes_AS_STRING(bytes), size);
    return at + size;
}

static uint8_t *put_entry(uint8_t *at, PyObject *key, PyObject *value)
{
    size_t key_bytes = (size_t)PyBytes_GET_SIZE(key);
    *at++ = key_bytes < 256 ? 0xA1 : 0xB1;
    if (key_bytes < 256)
        *at++ = (uint8_t)key_bytes;
    else
        at = put_u32(at, key_bytes);
    return put(put(at, key), value);
}

/* A map of `count` keys and values that take `size` bytes, and where they begin. Null with an exception. */
static PyObject *new_map(size_t size, size_t count, uint8_t **at)
{
    bool is_short = count < 256 && size < 255; /* the size includes the byte that holds the count */
    if (size > UINT32_MAX - 4 || count > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a map is too large");
        return NULL;
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size + (is_short ? 3 : 9)));
    if (!made) return NULL;
    *at = (uint8_t *)PyBytes_AS_STRING(made);
    if (is_short) {
        *(*at)++ = 0xC1;
        *(*at)++ = (uint8_t)(size + 1);
        *(*at)++ = (uint8_t)count;
    } else {
        *(*at)++ = 0xD1;
        *at = put_u32(put_u32(*at, size + 4), count);
    }
    return made;
}

static PyObject *encoded(PyObject *module, PyObject *given)
{
    (void)module;
    size_t size;
    if (!total_of(given, &size)) return NULL;
    uint8_t *at;
    PyObject *made = new_map(size, 2 * (size_t)PyDict_GET_SIZE(given), &at), *key, *value;
    if (!made) return NULL;
    for (Py_ssize_t place = 0; PyDict_Next(given, &place, &key, &value);) at = put_entry(at, key, value);
    return made;
}

/* --- changes laid over a map ---------------------------------------------------------------------------- */

typedef struct {
    PyObject *key, *value; /* null once the change is made */
    Py_hash_t hash;
} change_t;

typedef struct {
    size_t count, mask;
    change_t *all;   /* in their order */
    uint32_t *slots; /* by their hashes: 1 + the place in `all`, or 0 */
    Py_hash_t (*hash)(const void *, Py_ssize_t);
} changes_t;

/* Index a dictionary of bytes. False with an exception if there is no memory. */
static bool begin_changes(PyObject *given, changes_t *changes)
{
    size_t slots = 8;
    while (slots < 2 * (size_t)PyDict_GET_SIZE(given)) slots *= 2;
    changes->mask = slots - 1;
    changes->hash = PyHash_GetFuncDef()->hash; /* secret, so that no client can choose keys that collide */
    changes->all = PyMem_Calloc((size_t)PyDict_GET_SIZE(given) + 1, sizeof(change_t));
    changes->slots = PyMem_Calloc(slots, sizeof(uint32_t));
    if (!changes->all || !changes->slots) {
        PyErr_NoMemory();
        return false;
    }
    change_t *each = changes->all;
    for (Py_ssize_t place = 0; PyDict_Next(given, &place, &each->key, &each->value); each++) {
        each->hash = changes->hash(PyBytes_AS_STRING(each->key), PyBytes_GET_SIZE(each->key));
        size_t slot = (size_t)each->hash & changes->mask;
        while (changes->slots[slot]) slot = (slot + 1) & changes->mask;
        changes->slots[slot] = (uint32_t)(each - changes->all) + 1;
    }
    changes->count = (size_t)(each - changes->all);
    return true;
}

static void end_changes(changes_t *changes)
{
    PyMem_Free(changes->all);
    PyMem_Free(changes->slots);
}

/* The change of the property with this name, or null. */
static change_t *find_change(const changes_t *changes, const uint8_t *text, size_t size)
{
    Py_hash_t hash = changes->hash(text, (Py_ssize_t)size);
    size_t mask = changes->mask;
    for (size_t slot = (size_t)hash & mask; changes->slots[slot]; slot = (slot + 1) & mask) {
        change_t *each = &changes->all[changes->slots[slot] - 1];
        if (each->hash == hash && (size_t)PyBytes_GET_SIZE(each->key) == size &&
            !memcmp(PyBytes_AS_STRING(each->key), text, size))
            return each;
    }
    return NULL;
}

static bool is_null(PyObject *value)
{
    return PyBytes_GET_SIZE(value) == 1 && (uint8_t)PyBytes_AS_STRING(value)[0] == 0x40;
}

/* Copy the entry at `*from`, changed if it changes, and move `*from` behind it: where the copy ends. Null if
   it is no entry. Of several with one name, the first one is changed and the others go. */
static uint8_t *put_changed(uint8_t *to, const map_t *map, size_t *from, const changes_t *changes,
                            size_t *count)
{
    const uint8_t *bytes = map->bytes;
    size_t at = *from, at_value = at < map->end ? skip(bytes, at, map->end) : 0;
    size_t behind = at_value && at_value < map->end ? skip(bytes, at_value, map->end) : 0;
    size_t at_text = behind ? text_at(bytes, at) : 0;
    if (!at_text) return NULL;
    *from = behind;
    change_t *change = find_change(changes, bytes + at_text, at_value - at_text);
    PyObject *value = change ? change->value : NULL;
    if (change) change->value = NULL;
    if (change && (!value || is_null(value))) return to;
    *count += 2;
    size_t kept = (change ? at_value : behind) - at;
    memcpy(to, bytes + at, kept);
    return change ? put(to + kept, value) : to + kept;
}

/* The changes that met no entry. */
static uint8_t *put_rest(uint8_t *to, const changes_t *changes, size_t *count)
{
    for (const change_t *each = changes->all; each < changes->all + changes->count; each++)
        if (each->value && !is_null(each->value)) {
            *count += 2;
            to = put_entry(to, each->key, each->value);
        }
    return to;
}

static PyObject *laid_over(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    map_t map;
    changes_t changes;
    size_t size, count = 0;
    int is_map = given == 4 ? find_map(arguments, &map) : -1;
    if (given != 4) PyErr_SetString(PyExc_TypeError, "laid_over takes bytes, two offsets and a dictionary");
    if (is_map < 0 || !total_of(arguments[3], &size)) return NULL;
    if (!is_map) Py_RETURN_NONE;
    uint8_t *made = PyMem_Malloc(map.end - map.at + size + 1), *to = made;
    PyObject *map_made = NULL;
    if (!made) return PyErr_NoMemory();
    if (begin_changes(arguments[3], &changes)) {
        size_t from = map.at;
        for (size_t entry = 0; entry < map.count && to; entry++)
            to = put_changed(to, &map, &from, &changes, &count);
        if (to && from == map.end) {
            uint8_t *at;
            to = put_rest(to, &changes, &count);
            map_made = new_map((size_t)(to - made), count, &at);
            if (map_made) memcpy(at, made, (size_t)(to - made));
        }
    }
    end_changes(&changes);
    PyMem_Free(made);
    if (!map_made && !PyErr_Occurred()) Py_RETURN_NONE;
    return map_made;
}

static PyMethodDef methods[] = {
    {"entries", (PyCFunction)(void (*)(void))entries, METH_FASTCALL,
     "entries(buffer, value, end): the encoded values of the map from `value` to `end`, by the text of their "
     "keys; of several with one key the last. None if it is no such map."},
    {"encoded", encoded, METH_O, "encoded(entries): the map of such entries."},
    {"laid_over", (PyCFunction)(void (*)(void))laid_over, METH_FASTCALL,
     "laid_over(buffer, value, end, changes): the map from `value` to `end` with changes, values by the text "
     "of their keys; a null removes what has the key. None if it is no such map."},
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
