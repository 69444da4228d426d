/* Divides runs of messages by their keys: the native side of broker/namespace/router.py, which says what the
 * hash is.
 *
 * One call hashes the keys of a whole run and sorts everything that is known of the messages by partition.
 * The Python form of the hash in router.py is the reference, and the unit tests compare the two.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* --- BLAKE2b (RFC 7693), without a key, with a digest of 8 bytes ---------------------------------------- */

enum { BLOCK_BYTES = 128, DIGEST_BYTES = 8, ROUNDS = 12, PARTITIONS_MAX = 65536 };

static const uint64_t initial[8] = {
    0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
    0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u,
};

static const uint8_t orders[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint64_t rotated(uint64_t word, unsigned by)
{
    return word >> by | word << (64 - by);
}

static void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y)
{
    v[a] += v[b] + x;
    v[d] = rotated(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = rotated(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = rotated(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotated(v[b] ^ v[c], 63);
}

/* Add a block to the state; `counted` is the number of bytes up to its end, without padding. */
static void compress(uint64_t *state, const uint8_t *block, uint64_t counted, bool is_last)
{
    uint64_t words[16], v[16];
    for (int i = 0; i < 16; i++) {
        words[i] = 0;
        for (int byte = 7; byte >= 0; byte--) words[i] = words[i] << 8 | block[8 * i + byte];
    }
    memcpy(v, state, sizeof initial);
    memcpy(v + 8, initial, sizeof initial);
    v[12] ^= counted;
    if (is_last) v[14] = ~v[14];
    for (int round = 0; round < ROUNDS; round++) {
        const uint8_t *order = orders[round % 10];
        mix(v, 0, 4, 8, 12, words[order[0]], words[order[1]]);
        mix(v, 1, 5, 9, 13, words[order[2]], words[order[3]]);
        mix(v, 2, 6, 10, 14, words[order[4]], words[order[5]]);
        mix(v, 3, 7, 11, 15, words[order[6]], words[order[7]]);
        mix(v, 0, 5, 10, 15, words[order[8]], words[order[9]]);
        mix(v, 1, 6, 11, 12, words[order[10]], words[order[11]]);
        mix(v, 2, 7, 8, 13, words[order[12]], words[order[13]]);
        mix(v, 3, 4, 9, 14, words[order[14]], words[order[15]]);
    }
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
}

/* The digest, read as a big-endian number. */
static uint64_t digest_of(const uint8_t *bytes, size_t size)
{
    uint64_t state[8], digest = 0;
    uint8_t last[BLOCK_BYTES] = {0};
    size_t at = 0;
    memcpy(state, initial, sizeof state);
    state[0] ^= 0x01010000 | DIGEST_BYTES;
    for (; size - at > BLOCK_BYTES; at += BLOCK_BYTES) compress(state, bytes + at, at + BLOCK_BYTES, false);
    memcpy(last, bytes + at, size - at);
    compress(state, last, size, true);
    for (int byte = 0; byte < DIGEST_BYTES; byte++) digest = digest << 8 | (state[0] >> 8 * byte & 0xFF);
    return digest;
}

/* --- keys ----------------------------------------------------------------------------------------------- */

/* The partition of a key; -1 with an exception. */
static Py_ssize_t number_of(PyObject *key, Py_ssize_t partitions)
{
    Py_ssize_t size;
    const char *encoded = PyUnicode_AsUTF8AndSize(key, &size);
    if (encoded)
        return (Py_ssize_t)(digest_of((const uint8_t *)encoded, (size_t)size) % (uint64_t)partitions);
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return -1;
    PyErr_Clear(); /* half of a surrogate pair */
    PyObject *bytes = PyUnicode_AsEncodedString(key, "utf-8", "surrogatepass");
    if (!bytes) return -1;
    uint64_t digest = digest_of((const uint8_t *)PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes));
    Py_DECREF(bytes);
    return (Py_ssize_t)(digest % (uint64_t)partitions);
}

/* Find the partition of each key (-1 without one), and the number of keys of each partition. False with an
   exception. */
static bool find_numbers(PyObject *keys, Py_ssize_t partitions, Py_ssize_t *numbers, Py_ssize_t *counts)
{
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(keys); index++) {
        PyObject *key = PyTuple_GET_ITEM(keys, index);
        if (key == Py_None) {
            numbers[index] = -1;
        } else if (!PyUnicode_Check(key)) {
            PyErr_SetString(PyExc_TypeError, "a key is a str or None");
            return false;
        } else if ((numbers[index] = number_of(key, partitions)) < 0) {
            return false;
        }
        counts[numbers[index] + 1]++;
    }
    return true;
}

/* A new group: the number of its partition, and a list for its part of each of the lists. Null with an
   exception. */
static PyObject *new_group(Py_ssize_t number, Py_ssize_t count, PyObject *lists)
{
    Py_ssize_t width = PyTuple_GET_SIZE(lists);
    PyObject *group = PyTuple_New(1 + width);
    if (!group) return NULL;
    PyObject *first = number < 0 ? Py_NewRef(Py_None) : PyLong_FromSsize_t(number);
    bool done = first != NULL;
    PyTuple_SET_ITEM(group, 0, first);
    for (Py_ssize_t each = 0; done && each < width; each++) {
        PyObject *part = PyList_New(PyTuple_GET_SIZE(PyTuple_GET_ITEM(lists, each)) ? count : 0);
        PyTuple_SET_ITEM(group, 1 + each, part);
        done = part != NULL;
        for (Py_ssize_t place = 0; part && place < PyList_GET_SIZE(part); place++)
            PyList_SET_ITEM(part, place, Py_NewRef(Py_None));
    }
    if (done) return group;
    Py_DECREF(group);
    return NULL;
}

/* Sort the values of all lists into groups. `groups` are borrowed references by number, all null; `filled`
   are all 0. Null with an exception. */
static PyObject *sort(PyObject *lists, Py_ssize_t count, const Py_ssize_t *numbers, const Py_ssize_t *counts,
                      PyObject **groups, Py_ssize_t *filled)
{
    PyObject *sorted = PyList_New(0);
    for (Py_ssize_t index = 0; sorted && index < count; index++) {
        Py_ssize_t slot = numbers[index] + 1;
        if (!groups[slot]) {
            PyObject *group = new_group(numbers[index], counts[slot], lists);
            bool done = group && PyList_Append(sorted, group) == 0;
            Py_XDECREF(group); /* the list holds it */
            if (!done) Py_CLEAR(sorted);
            if (!done) break;
            groups[slot] = group;
        }
        for (Py_ssize_t each = 0; each < PyTuple_GET_SIZE(lists); each++) {
            PyObject *list = PyTuple_GET_ITEM(lists, each);
            if (PyTuple_GET_SIZE(list))
                PyList_SetItem(PyTuple_GET_ITEM(groups[slot], 1 + each), filled[slot],
                               Py_NewRef(PyTuple_GET_ITEM(list, index)));
        }
        filled[slot]++;
    }
    return sorted;
}

/* The lists as a tuple of tuples, which nobody else can change. Null with an exception. */
static PyObject *tuples_of(PyObject *lists, Py_ssize_t count)
{
    PyObject *given = PySequence_Tuple(lists);
    if (!given) return NULL;
    PyObject *tuples = PyTuple_New(PyTuple_GET_SIZE(given));
    for (Py_ssize_t each = 0; tuples && each < PyTuple_GET_SIZE(given); each++) {
        PyObject *one = PySequence_Tuple(PyTuple_GET_ITEM(given, each));
        if (one && PyTuple_GET_SIZE(one) && PyTuple_GET_SIZE(one) != count) {
            PyErr_SetString(PyExc_ValueError, "a list has a value for each key, or none");
            Py_CLEAR(one);
        }
        if (one)
            PyTuple_SET_ITEM(tuples, each, one);
        else
            Py_CLEAR(tuples);
    }
    Py_DECREF(given);
    return tuples;
}

static PyObject *divide(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    Py_ssize_t partitions = given == 3 ? PyLong_AsSsize_t(arguments[1]) : -1;
    if (PyErr_Occurred()) return NULL;
    if (partitions < 1 || partitions > PARTITIONS_MAX) {
        PyErr_SetString(PyExc_ValueError, "divide takes keys, a number of partitions and lists");
        return NULL;
    }
    PyObject *keys = PySequence_Tuple(arguments[0]);
    if (!keys) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(keys), slots = partitions + 1;
    PyObject *lists = tuples_of(arguments[2], count), *sorted = NULL;
    Py_ssize_t *numbers = PyMem_Calloc((size_t)(count + 2 * slots), sizeof *numbers);
    PyObject **groups = PyMem_Calloc((size_t)slots, sizeof *groups);
    if (lists && (!numbers || !groups)) PyErr_NoMemory();
    if (lists && numbers && groups && find_numbers(keys, partitions, numbers, numbers + count))
        sorted = sort(lists, count, numbers, numbers + count, groups, numbers + count + slots);
    PyMem_Free(groups);
    PyMem_Free(numbers);
    Py_XDECREF(lists);
    Py_DECREF(keys);
    return sorted;
}

static PyMethodDef methods[] = {
    {"divide", (PyCFunction)(void (*)(void))divide, METH_FASTCALL,
     "divide(keys, partitions, lists): by partition, its number (None for those without a key) and its part "
     "of each list."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_placing", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__placing(void)
{
    return PyModule_Create(&definition);
}
