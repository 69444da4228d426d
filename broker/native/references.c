/* What a partition does with each of the messages that it locks, settles and removes, done for a run of them
 * in one call: the native side of broker/partition/locks.py, subqueue.py and messages.py. The unit tests
 * compare it with the same in Python.
 *
 * A message is a `Reference` (broker/partition/references.py). Its fields are slots, so they are at fixed
 * places in the object, also in objects of subclasses; `bind` asks the class for these places. Everything
 * else (records, sessions, timers, answers) is decided by the callers, once for a run.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "slots.h"
#include "values.h"

enum { TOKEN_BYTES = 16, NUMBER_BYTES = 8, SHOWN_MAX = 8 };

static PyTypeObject *reference_type, *frame_type;
static PyObject *no_payload;

typedef struct {
    Py_ssize_t number, frame, offset, size, lives, payload, state, lease, changed; /* in a reference */
    Py_ssize_t live, position;                                                     /* in a frame */
    Py_ssize_t shown[SHOWN_MAX], shown_count;
} places_t;
static places_t at;

typedef struct {
    long long property, own, own_bytes_max; /* see `set_costs` */
} costs_t;
static costs_t costs;

/* --- fields --------------------------------------------------------------------------------------------- */

static PyObject **field(PyObject *object, Py_ssize_t place)
{
    return (PyObject **)((char *)object + place);
}

static void set_field(PyObject *object, Py_ssize_t place, PyObject *value)
{
    PyObject *before = *field(object, place);
    *field(object, place) = Py_NewRef(value);
    Py_XDECREF(before);
}

static bool is_reference(PyObject *object)
{
    if (reference_type && PyObject_TypeCheck(object, reference_type)) return true;
    PyErr_SetString(PyExc_TypeError, "a reference is expected");
    return false;
}

static bool is_frame(PyObject *object)
{
    if (PyObject_TypeCheck(object, frame_type)) return true;
    PyErr_SetString(PyExc_TypeError, "a frame is expected");
    return false;
}

/* One of a reference's fields, borrowed, or NULL with an exception. */
static PyObject *get(PyObject *reference, Py_ssize_t place)
{
    if (!is_reference(reference)) return NULL;
    PyObject *value = *field(reference, place);
    if (!value) PyErr_SetString(PyExc_AttributeError, "a field of a reference is not set");
    return value;
}

/* PyLong_AsLong reads the digits of a large number much faster than PyLong_AsLongLong. */
_Static_assert(sizeof(long) == sizeof(int64_t), "a long has 64 bits");

static bool read_number(PyObject *object, int64_t *number)
{
    *number = object ? PyLong_AsLong(object) : -1;
    return object && (*number != -1 || !PyErr_Occurred());
}

static bool has_arguments(PyObject *const *arguments, Py_ssize_t given, Py_ssize_t expected)
{
    if (given == expected && PyList_Check(arguments[0])) return true;
    PyErr_SetString(PyExc_TypeError, "a list is expected, and as many arguments as there are parameters");
    return false;
}

/* --- changed properties --------------------------------------------------------------------------------- */

/* How many entries an encoded map of changes has; -1 if the bytes are no such map. */
static int64_t entries_in(PyObject *changed)
{
    if (!PyBytes_Check(changed)) return -1;
    const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(changed);
    size_t size = (size_t)PyBytes_GET_SIZE(changed), count, first;
    if (!size || (bytes[0] != 0xC1 && bytes[0] != 0xD1)) return -1;
    return elements(bytes, 0, size, &count, &first) ? (int64_t)(count / 2) : -1;
}

/* What it costs to lay a message's changed properties over it: `laying_cost` in changed_properties.py. */
static bool read_laying_cost(PyObject *reference, int64_t size, int64_t *cost)
{
    PyObject *changed = get(reference, at.changed);
    *cost = 0;
    if (!changed || changed == Py_None) return changed != NULL;
    int64_t entries = entries_in(changed);
    if (entries < 0) {
        PyErr_SetString(PyExc_TypeError, "changed properties are an encoded map");
        return false;
    }
    int64_t own_bytes = size < costs.own_bytes_max ? size : costs.own_bytes_max;
    *cost = PyBytes_GET_SIZE(changed) + costs.property * entries + costs.own * own_bytes;
    return true;
}

static PyObject *laying_costs(PyObject *module, PyObject *references)
{
    (void)module;
    if (!has_arguments(&references, 1, 1)) return NULL;
    int64_t total = 0, size, cost;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(references); index++) {
        PyObject *reference = PyList_GET_ITEM(references, index);
        if (!read_number(get(reference, at.size), &size) || !read_laying_cost(reference, size, &cost))
            return NULL;
        total += cost;
    }
    return PyLong_FromLong((long)total);
}

static PyObject *set_costs(PyObject *module, PyObject *arguments)
{
    (void)module;
    costs_t given;
    if (!PyArg_ParseTuple(arguments, "LLL", &given.property, &given.own, &given.own_bytes_max)) return NULL;
    costs = given;
    Py_RETURN_NONE;
}

/* --- handing out ---------------------------------------------------------------------------------------- */

/* Whether a message can be locked: 1 if so, 0 if not, -1 with an exception. */
static int can_lock(PyObject *reference, PyObject *active, PyObject *now, int64_t now_ms)
{
    if (reference == Py_None) return 0;
    PyObject *state = get(reference, at.state);
    if (!state) return -1;
    if (state != active || *field(reference, at.lease) != Py_None) return 0;
    PyObject *lives = *field(reference, at.lives);
    if (now == Py_None || lives == Py_None) return 1;
    int64_t until_ms;
    if (!read_number(lives, &until_ms)) return -1;
    return until_ms > now_ms;
}

static PyObject *lock(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (!has_arguments(arguments, given, 5)) return NULL;
    PyObject *found = arguments[0], *active = arguments[1], *lease = arguments[2], *now = arguments[4];
    int64_t bytes_max, now_ms = 0, size, cost;
    if (!read_number(arguments[3], &bytes_max) || (now != Py_None && !read_number(now, &now_ms))) return NULL;
    Py_ssize_t count = 0;
    for (; count < PyList_GET_SIZE(found) && bytes_max > 0; count++) {
        PyObject *reference = PyList_GET_ITEM(found, count);
        int can = can_lock(reference, active, now, now_ms);
        if (can < 0) return NULL;
        if (!can) break;
        if (!read_number(get(reference, at.size), &size) || !read_laying_cost(reference, size, &cost))
            return NULL;
        set_field(reference, at.lease, lease);
        bytes_max -= size + cost;
    }
    PyObject *locked = PyList_GetSlice(found, 0, count);
    return locked ? Py_BuildValue("Nl", locked, (long)bytes_max) : NULL;
}

static PyObject *shown(PyObject *module, PyObject *references)
{
    (void)module;
    if (!has_arguments(&references, 1, 1)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(references);
    PyObject *lists = PyTuple_New(at.shown_count);
    for (Py_ssize_t each = 0; lists && each < at.shown_count; each++) {
        PyObject *list = PyList_New(count);
        if (!list) Py_CLEAR(lists);
        else PyTuple_SET_ITEM(lists, each, list);
    }
    for (Py_ssize_t index = 0; lists && index < count; index++) {
        PyObject *reference = PyList_GET_ITEM(references, index);
        for (Py_ssize_t each = 0; lists && each < at.shown_count; each++) {
            PyObject *value = get(reference, at.shown[each]);
            if (!value) Py_CLEAR(lists);
            else PyList_SET_ITEM(PyTuple_GET_ITEM(lists, each), index, Py_NewRef(value));
        }
    }
    return lists;
}

static void put_number(uint8_t *to, uint64_t number)
{
    for (int place = NUMBER_BYTES - 1; place >= 0; place--, number >>= 8) to[place] = (uint8_t)number;
}

static uint64_t number_in(const char *token)
{
    uint64_t number = 0;
    for (int place = 0; place < NUMBER_BYTES; place++) number = number << 8 | (uint8_t)token[place];
    return number;
}

static PyObject *tokens(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (!has_arguments(arguments, given, 2)) return NULL;
    uint8_t token[TOKEN_BYTES];
    uint64_t nonce = PyLong_AsUnsignedLong(arguments[1]);
    if (PyErr_Occurred()) return NULL;
    put_number(token + NUMBER_BYTES, nonce);
    Py_ssize_t count = PyList_GET_SIZE(arguments[0]);
    PyObject *made = PyList_New(count);
    for (Py_ssize_t index = 0; made && index < count; index++) {
        int64_t number;
        PyObject *each = NULL;
        if (read_number(PyList_GET_ITEM(arguments[0], index), &number)) {
            put_number(token, (uint64_t)number);
            each = PyBytes_FromStringAndSize((char *)token, TOKEN_BYTES);
        }
        if (each) PyList_SET_ITEM(made, index, each);
        else Py_CLEAR(made);
    }
    return made;
}

/* --- messages that are not in memory -------------------------------------------------------------------- */

/* Whether a message is missing: 1 if so, 0 if not, -1 with an exception. */
static int is_missing(PyObject *message, PyObject *reference)
{
    int64_t size;
    if (!PyBytes_Check(message)) {
        PyErr_SetString(PyExc_TypeError, "messages are bytes");
        return -1;
    }
    if (PyBytes_GET_SIZE(message)) return 0;
    return read_number(get(reference, at.size), &size) ? size > 0 : -1;
}

static bool are_parallel(PyObject *messages, PyObject *references)
{
    if (PyList_Check(messages) && PyList_Check(references) &&
        PyList_GET_SIZE(messages) == PyList_GET_SIZE(references))
        return true;
    PyErr_SetString(PyExc_TypeError, "messages and references are lists of the same length");
    return false;
}

static PyObject *missing(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (!has_arguments(arguments, given, 2) || !are_parallel(arguments[0], arguments[1])) return NULL;
    PyObject *found = PyList_New(0);
    for (Py_ssize_t index = 0; found && index < PyList_GET_SIZE(arguments[0]); index++) {
        PyObject *reference = PyList_GET_ITEM(arguments[1], index);
        int is = is_missing(PyList_GET_ITEM(arguments[0], index), reference);
        if (is < 0 || (is && PyList_Append(found, reference) < 0)) Py_CLEAR(found);
    }
    return found;
}

static PyObject *put_in(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    int64_t next;
    if (!has_arguments(arguments, given, 4) || !are_parallel(arguments[0], arguments[1]) ||
        !read_number(arguments[3], &next))
        return NULL;
    PyObject *messages = arguments[0], *found = arguments[2];
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(messages); index++) {
        int is = is_missing(PyList_GET_ITEM(messages, index), PyList_GET_ITEM(arguments[1], index));
        if (is < 0) return NULL;
        if (!is) continue;
        if (!PyList_Check(found) || next < 0 || next >= PyList_GET_SIZE(found)) {
            PyErr_SetString(PyExc_ValueError, "there is one message for each that is missing");
            return NULL;
        }
        PyList_SetItem(messages, index, Py_NewRef(PyList_GET_ITEM(found, next++)));
    }
    return PyLong_FromLong((long)next);
}

static PyObject *stored_at(PyObject *module, PyObject *references)
{
    (void)module;
    if (!has_arguments(&references, 1, 1)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(references);
    PyObject *positions = PyList_New(count), *offsets = PyList_New(count), *sizes = PyList_New(count);
    PyObject *made = NULL;
    Py_ssize_t index = 0;
    for (; positions && offsets && sizes && index < count; index++) {
        PyObject *reference = PyList_GET_ITEM(references, index), *frame = get(reference, at.frame);
        if (!frame || !is_frame(frame)) break;
        PyObject *position = *field(frame, at.position);
        PyObject *offset = get(reference, at.offset), *size = get(reference, at.size);
        if (!position || !offset || !size) break;
        PyList_SET_ITEM(positions, index, Py_NewRef(position));
        PyList_SET_ITEM(offsets, index, Py_NewRef(offset));
        PyList_SET_ITEM(sizes, index, Py_NewRef(size));
    }
    if (positions && offsets && sizes && index == count) made = PyTuple_Pack(3, positions, offsets, sizes);
    Py_XDECREF(positions);
    Py_XDECREF(offsets);
    Py_XDECREF(sizes);
    return made;
}

/* --- settling ------------------------------------------------------------------------------------------- */

/* The message that a token names if the lease holds it, borrowed; NULL if not, or with an exception. `nonce`
 * is the end of the tokens of this lease. */
static PyObject *held_by(PyObject *token, const char *nonce, PyObject *table, PyObject *lease)
{
    if (!PyBytes_Check(token) || PyBytes_GET_SIZE(token) != TOKEN_BYTES) return NULL;
    const char *bytes = PyBytes_AS_STRING(token);
    if (memcmp(bytes + NUMBER_BYTES, nonce, TOKEN_BYTES - NUMBER_BYTES) != 0) return NULL;
    PyObject *number = PyLong_FromUnsignedLongLong(number_in(bytes));
    if (!number) return NULL;
    PyObject *reference = PyDict_GetItemWithError(table, number);
    Py_DECREF(number);
    return reference && is_reference(reference) && *field(reference, at.lease) == lease ? reference : NULL;
}

static PyObject *unlock(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (!has_arguments(arguments, given, 5)) return NULL;
    PyObject *list = arguments[0], *table = arguments[2], *lease = arguments[3], *unlocked = arguments[4];
    int64_t index;
    if (!read_number(arguments[1], &index)) return NULL;
    if (!PyDict_Check(table) || !PyList_Check(unlocked) || index < 0 || index >= PyList_GET_SIZE(list) ||
        lease == Py_None || !PyBytes_Check(PyList_GET_ITEM(list, index)) ||
        PyBytes_GET_SIZE(PyList_GET_ITEM(list, index)) != TOKEN_BYTES) {
        PyErr_SetString(PyExc_TypeError, "unlock takes tokens, a place, a table, a lease and a list");
        return NULL;
    }
    const char *nonce = PyBytes_AS_STRING(PyList_GET_ITEM(list, index)) + NUMBER_BYTES;
    for (; index < PyList_GET_SIZE(list); index++) {
        PyObject *reference = held_by(PyList_GET_ITEM(list, index), nonce, table, lease);
        if (!reference || PyList_Append(unlocked, reference) < 0) break;
        set_field(reference, at.lease, Py_None);
    }
    return PyErr_Occurred() ? NULL : PyLong_FromLong((long)index);
}

/* --- removing ------------------------------------------------------------------------------------------- */

static PyObject *numbers(PyObject *module, PyObject *references)
{
    (void)module;
    if (!has_arguments(&references, 1, 1)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(references);
    PyObject *made = PyList_New(count);
    for (Py_ssize_t index = 0; made && index < count; index++) {
        PyObject *number = get(PyList_GET_ITEM(references, index), at.number);
        if (number) PyList_SET_ITEM(made, index, Py_NewRef(number));
        else Py_CLEAR(made);
    }
    return made;
}

static PyObject *shifted(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (!has_arguments(arguments, given, 2)) return NULL;
    int64_t shift, number, latest = 0;
    if (!read_number(arguments[1], &shift)) return NULL;
    if (shift < 0 || shift > 62) {
        PyErr_SetString(PyExc_ValueError, "a shift is from 0 to 62");
        return NULL;
    }
    PyObject *made = PyList_New(0);
    for (Py_ssize_t index = 0; made && index < PyList_GET_SIZE(arguments[0]); index++) {
        bool known = read_number(PyList_GET_ITEM(arguments[0], index), &number);
        number >>= shift;
        if (known && index && number == latest) continue;
        latest = number;
        PyObject *each = known ? PyLong_FromLong((long)number) : NULL;
        if (!each || PyList_Append(made, each) < 0) Py_CLEAR(made);
        Py_XDECREF(each);
    }
    return made;
}

static PyObject *bounds(PyObject *module, PyObject *numbers)
{
    (void)module;
    if (!has_arguments(&numbers, 1, 1)) return NULL;
    int64_t least = INT64_MAX, greatest = INT64_MIN, number;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(numbers); index++) {
        if (!read_number(PyList_GET_ITEM(numbers, index), &number)) return NULL;
        if (number < least) least = number;
        if (number > greatest) greatest = number;
    }
    return Py_BuildValue("ll", (long)least, (long)greatest);
}

static PyObject *tally(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (!has_arguments(arguments, given, 3)) return NULL;
    PyObject *references = arguments[0];
    int64_t total = 0, size;
    Py_ssize_t in_first = 0, in_second = 0;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(references); index++) {
        PyObject *reference = PyList_GET_ITEM(references, index);
        PyObject *state = get(reference, at.state);
        if (!state || !read_number(get(reference, at.size), &size)) return NULL;
        total += size;
        in_first += state == arguments[1];
        in_second += state == arguments[2];
    }
    return Py_BuildValue("lnn", (long)total, in_first, in_second);
}

static bool add_life(PyObject *found, PyObject *until_ms, Py_ssize_t count)
{
    if (!count || until_ms == Py_None) return true;
    PyObject *pair = Py_BuildValue("On", until_ms, count);
    bool done = pair && PyList_Append(found, pair) == 0;
    Py_XDECREF(pair);
    return done;
}

static PyObject *lives(PyObject *module, PyObject *references)
{
    (void)module;
    if (!has_arguments(&references, 1, 1)) return NULL;
    PyObject *found = PyList_New(0), *latest = Py_None;
    Py_ssize_t count = 0;
    for (Py_ssize_t index = 0; found && index < PyList_GET_SIZE(references); index++) {
        PyObject *until_ms = get(PyList_GET_ITEM(references, index), at.lives);
        int same = until_ms ? PyObject_RichCompareBool(until_ms, latest, Py_EQ) : -1;
        if (same == 0 && !add_life(found, latest, count)) same = -1;
        if (same < 0) Py_CLEAR(found);
        count = same == 1 ? count + 1 : 1;
        latest = until_ms;
    }
    if (found && !add_life(found, latest, count)) Py_CLEAR(found);
    return found;
}

/* Fewer live messages are in this frame. */
static bool leave_frame(PyObject *frame, int64_t count)
{
    int64_t live;
    if (!frame) return true;
    if (!is_frame(frame) || !read_number(*field(frame, at.live), &live)) return false;
    PyObject *left = PyLong_FromLong((long)(live - count));
    if (left) set_field(frame, at.live, left);
    Py_XDECREF(left);
    return left != NULL;
}

static PyObject *let_go(PyObject *module, PyObject *references)
{
    (void)module;
    if (!has_arguments(&references, 1, 1)) return NULL;
    PyObject *frame = NULL;
    int64_t in_frame = 0;
    Py_ssize_t in_memory = 0;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(references); index++) {
        PyObject *reference = PyList_GET_ITEM(references, index);
        PyObject *payload = get(reference, at.payload);
        if (!payload) return NULL;
        PyObject *own_frame = *field(reference, at.frame);
        if (own_frame != frame) {
            if (!leave_frame(frame, in_frame)) return NULL;
            frame = own_frame;
            in_frame = 0;
        }
        in_frame++;
        if (PyBytes_Check(payload) && PyBytes_GET_SIZE(payload)) {
            in_memory += PyBytes_GET_SIZE(payload);
            set_field(reference, at.payload, no_payload);
        }
    }
    return leave_frame(frame, in_frame) ? PyLong_FromSsize_t(in_memory) : NULL;
}

/* --- the module ----------------------------------------------------------------------------------------- */

static PyObject *bind(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *reference, *frame, *attributes;
    if (!PyArg_ParseTuple(arguments, "O!O!O!", &PyType_Type, &reference, &PyType_Type, &frame, &PyTuple_Type,
                          &attributes))
        return NULL;
    places_t found = {.shown_count = PyTuple_GET_SIZE(attributes)};
    if (found.shown_count > SHOWN_MAX) {
        PyErr_SetString(PyExc_ValueError, "too many attributes");
        return NULL;
    }
    const struct {
        PyObject *type;
        const char *name;
        Py_ssize_t *place;
    } fields[] = {
        {reference, "sequence_number", &found.number},
        {reference, "frame", &found.frame},
        {reference, "offset", &found.offset},
        {reference, "size", &found.size},
        {reference, "lives_until_ms", &found.lives},
        {reference, "payload", &found.payload},
        {reference, "state", &found.state},
        {reference, "lease", &found.lease},
        {reference, "changed", &found.changed},
        {frame, "live", &found.live},
        {frame, "position", &found.position},
    };
    for (size_t each = 0; each < sizeof fields / sizeof *fields; each++)
        if ((*fields[each].place = slot_named(fields[each].type, fields[each].name)) < 0) return NULL;
    for (Py_ssize_t each = 0; each < found.shown_count; each++)
        if ((found.shown[each] = slot_of(reference, PyTuple_GET_ITEM(attributes, each))) < 0) return NULL;
    at = found;
    Py_XSETREF(reference_type, (PyTypeObject *)Py_NewRef(reference));
    Py_XSETREF(frame_type, (PyTypeObject *)Py_NewRef(frame));
    Py_RETURN_NONE;
}

#define FAST(name) (PyCFunction)(void (*)(void))name, METH_FASTCALL
static PyMethodDef methods[] = {
    {"bind", bind, METH_VARARGS,
     "bind(reference, frame, attributes): the classes of references and frames, and what `shown` shows."},
    {"lock", FAST(lock),
     "lock(found, active, lease, bytes_max, now_ms): lock these messages, up to the first that is missing, "
     "not in the state `active`, locked, or expired (unless `now_ms` is None). Gives those that were locked, "
     "and what is left of `bytes_max`, which the last of them may exceed. Their changed properties count "
     "with what `laying_costs` gives."},
    {"laying_costs", laying_costs, METH_O,
     "laying_costs(references): what it costs to lay their changed properties over the messages."},
    {"set_costs", set_costs, METH_VARARGS,
     "set_costs(property, own, own_bytes_max): what `laying_costs` counts besides one unit for each byte of "
     "changed properties: for each property, and for each of the message's first bytes."},
    {"shown", shown, METH_O, "shown(references): a list of each of the attributes."},
    {"tokens", FAST(tokens), "tokens(numbers, nonce): the lock tokens of messages."},
    {"missing", FAST(missing),
     "missing(messages, references): the references to those messages that are empty, and should not be."},
    {"put_in", FAST(put_in),
     "put_in(messages, references, found, next): put what was found, from the place `next` on, where "
     "messages are missing. Gives the place of what follows."},
    {"stored_at", stored_at, METH_O,
     "stored_at(references): where their messages are in the log: lists of the positions of their frames, "
     "their offsets in these, and their sizes."},
    {"unlock", FAST(unlock),
     "unlock(tokens, begin, table, lease, unlocked): end the locks of the messages that these tokens name, "
     "from the place `begin` on, up to the first with another nonce, or whose message is not in `table` or "
     "not held by this lease. Adds the messages to `unlocked`, and gives the place where it ended."},
    {"numbers", numbers, METH_O, "numbers(references): their sequence numbers."},
    {"shifted", FAST(shifted),
     "shifted(numbers, shift): each number without its lowest bits, once for neighbours that give the same."},
    {"bounds", bounds, METH_O, "bounds(numbers): the lowest and the highest of them; there must be some."},
    {"tally", FAST(tally),
     "tally(references, state, other): their size, and how many are in each of two states."},
    {"lives", lives, METH_O,
     "lives(references): when their times to live end, with the number of neighbours that have it in common; "
     "without those that never end."},
    {"let_go", let_go, METH_O,
     "let_go(references): their frames no longer count them, and their bodies leave memory. Gives the size "
     "of the bodies that were in memory."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_references", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__references(void)
{
    if (!no_payload && !(no_payload = PyBytes_FromStringAndSize(NULL, 0))) return NULL;
    return PyModule_Create(&definition);
}
