/* Writes and syncs the commits of many files without the interpreter lock, and without the event loop ever
 * waiting for a file system: the native side of storage/commit_queue.py, which explains it.
 *
 * Two threads take commits from `pending`, in order, and write them. What was written waits in `written` until
 * nothing is pending; then one call hands all syncs to the kernel (AIO, IOCB_CMD_FDSYNC, Linux 4.18), whose
 * workers carry them out side by side. A single sync is made by the thread itself if the other thread is idle:
 * that spares a commit that comes alone the way to another worker. What has ended is in `ended_first`, or in
 * the kernel's ring. Both make the eventfd readable.
 *
 * The threads never touch a Python object. The buffers of a commit are held until `ended` has returned it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>

#ifdef __linux__
#include <linux/aio_abi.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    THREADS = 2,
    SYNCS_MAX = 1024,  /* how many syncs one system call submits or collects; the kernel's ring has more room */
    BUFFERS_MAX = 1024 /* of one write (UIO_MAXIOV) */
};

typedef struct commit {
    struct commit *next;
    unsigned long long number;
    int fd;
    bool syncs, is_written;
    int error;
    off_t offset;
    Py_ssize_t count;
    Py_buffer *buffers; /* the event loop's; it holds them */
    struct iovec *pieces; /* what is left to write */
    struct iocb block;
} commit_t;

typedef struct {
    commit_t *first, *last;
} list_t;

typedef struct {
    pthread_mutex_t mutex; /* guards the lists and the counts; nobody makes a blocking call while holding it */
    pthread_cond_t changed;
    list_t pending, written, ended;
    int idle;
    bool is_closing;
    /* Owned by the event loop: */
    int threads;
    pthread_t ids[THREADS];
    long under_way; /* commits that `ended` has not returned */
    /* Constant: */
    aio_context_t context;
    int ready_fd;
} shared_t;

typedef struct {
    PyObject_HEAD
    shared_t *shared; /* NULL once it is closed */
} queue_t;

static void append(list_t *list, commit_t *commit)
{
    commit->next = NULL;
    if (list->first) list->last->next = commit;
    else list->first = commit;
    list->last = commit;
}

static commit_t *take_first(list_t *list)
{
    commit_t *commit = list->first;
    if (commit) list->first = commit->next;
    return commit;
}

static commit_t *take_all(list_t *list)
{
    commit_t *first = list->first;
    list->first = NULL;
    return first;
}

/* --- in the threads --- */

static void tell(shared_t *shared)
{
    uint64_t one = 1;
    while (write(shared->ready_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

/* Write everything, continuing after short writes. Gives 0, or an errno. */
static int write_all(commit_t *commit)
{
    Py_ssize_t place = 0;
    for (;;) {
        while (place < commit->count && commit->pieces[place].iov_len == 0) place++;
        if (place == commit->count) return 0;
        Py_ssize_t left = commit->count - place;
        ssize_t done = pwritev(commit->fd, commit->pieces + place, (int)(left < BUFFERS_MAX ? left : BUFFERS_MAX),
                               commit->offset);
        if (done < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        if (done == 0) return EIO;
        commit->offset += done;
        for (size_t rest = (size_t)done; place < commit->count; place++) {
            struct iovec *piece = commit->pieces + place;
            if (rest < piece->iov_len) {
                piece->iov_base = (char *)piece->iov_base + rest;
                piece->iov_len -= rest;
                break;
            }
            rest -= piece->iov_len;
        }
    }
}

static void end(shared_t *shared, commit_t *commit)
{
    pthread_mutex_lock(&shared->mutex);
    append(&shared->ended, commit);
    pthread_mutex_unlock(&shared->mutex);
    tell(shared);
}

static void sync_here(shared_t *shared, commit_t *commit)
{
    commit->error = fdatasync(commit->fd) == 0 ? 0 : errno; /* never repeated (durability rule 4) */
    end(shared, commit);
}

/* Hand syncs to the kernel. Gives those that it does not accept. */
static commit_t *submit_syncs(shared_t *shared, commit_t *commit)
{
    struct iocb *blocks[SYNCS_MAX];
    while (commit) {
        long count = 0;
        for (; commit && count < SYNCS_MAX; commit = commit->next) {
            memset(&commit->block, 0, sizeof commit->block);
            commit->block.aio_data = (uint64_t)(uintptr_t)commit;
            commit->block.aio_lio_opcode = IOCB_CMD_FDSYNC;
            commit->block.aio_fildes = (uint32_t)commit->fd;
            commit->block.aio_flags = IOCB_FLAG_RESFD;
            commit->block.aio_resfd = (uint32_t)shared->ready_fd;
            blocks[count++] = &commit->block;
        }
        long accepted = syscall(SYS_io_submit, shared->context, count, blocks);
        /* What was accepted may have been freed by now. */
        if (accepted < count) return (commit_t *)(uintptr_t)blocks[accepted < 0 ? 0 : accepted]->aio_data;
    }
    return NULL;
}

static void *work(void *argument)
{
    shared_t *shared = argument;
    commit_t *commit;
    pthread_mutex_lock(&shared->mutex);
    for (;;) {
        if ((commit = take_first(&shared->pending))) {
            pthread_mutex_unlock(&shared->mutex);
            commit->error = write_all(commit);
            commit->is_written = !commit->error;
            bool has_ended = commit->error || !commit->syncs;
            pthread_mutex_lock(&shared->mutex);
            append(has_ended ? &shared->ended : &shared->written, commit);
            if (!has_ended) continue;
            pthread_mutex_unlock(&shared->mutex);
            tell(shared);
        } else if ((commit = take_all(&shared->written))) {
            bool syncs_here = !commit->next && shared->idle > 0;
            pthread_mutex_unlock(&shared->mutex);
            if (!syncs_here) commit = submit_syncs(shared, commit);
            for (commit_t *next; commit; commit = next) {
                next = commit->next; /* whoever is told may free it */
                sync_here(shared, commit);
            }
        } else if (shared->is_closing) {
            break;
        } else {
            shared->idle++;
            pthread_cond_wait(&shared->changed, &shared->mutex);
            shared->idle--;
            continue;
        }
        pthread_mutex_lock(&shared->mutex);
    }
    pthread_mutex_unlock(&shared->mutex);
    return NULL;
}

/* --- in the event loop --- */

/* Start the threads that are missing. Gives false if there is none. They take no signals: those are for the
 * interpreter. */
static bool has_threads(shared_t *shared)
{
    if (shared->threads == THREADS) return true;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (shared->threads < THREADS && pthread_create(&shared->ids[shared->threads], NULL, work, shared) == 0) {
        pthread_setname_np(shared->ids[shared->threads], "storage-commits");
        shared->threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return shared->threads > 0;
}

static void drop(commit_t *commit)
{
    for (Py_ssize_t place = 0; commit->buffers && place < commit->count; place++)
        PyBuffer_Release(&commit->buffers[place]);
    PyMem_Free(commit->buffers);
    PyMem_Free(commit->pieces);
    PyMem_Free(commit);
}

/* A commit from (number, fd, buffers, offset, syncs). */
static commit_t *commit_of(PyObject *given)
{
    unsigned long long number;
    int fd, syncs;
    PyObject *buffers;
    long long offset;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a commit is a tuple");
        return NULL;
    }
    if (!PyArg_ParseTuple(given, "KiOLp", &number, &fd, &buffers, &offset, &syncs)) return NULL;
    PyObject *list = PySequence_Fast(buffers, "a commit has a sequence of buffers");
    if (!list) return NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(list);
    commit_t *commit = PyMem_Calloc(1, sizeof *commit);
    Py_buffer *held = PyMem_New(Py_buffer, count);
    struct iovec *pieces = PyMem_New(struct iovec, count);
    if (!commit || !held || !pieces) {
        PyMem_Free(commit);
        PyMem_Free(held);
        PyMem_Free(pieces);
        Py_DECREF(list);
        PyErr_NoMemory();
        return NULL;
    }
    *commit = (commit_t){.number = number, .fd = fd, .syncs = syncs, .offset = offset, .buffers = held,
                         .pieces = pieces};
    for (; commit->count < count; commit->count++) {
        Py_buffer *buffer = &held[commit->count];
        if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(list, commit->count), buffer, PyBUF_SIMPLE) < 0) {
            Py_DECREF(list);
            drop(commit);
            return NULL;
        }
        pieces[commit->count] = (struct iovec){buffer->buf, (size_t)buffer->len};
    }
    Py_DECREF(list);
    return commit;
}

static shared_t *opened(queue_t *self)
{
    if (!self->shared) PyErr_SetString(PyExc_ValueError, "the queue is closed");
    return self->shared;
}

static PyObject *queue_submit(queue_t *self, PyObject *given)
{
    shared_t *shared = opened(self);
    PyObject *commits = shared ? PySequence_Fast(given, "a sequence of commits is expected") : NULL;
    if (!commits) return NULL;
    list_t list = {NULL, NULL};
    Py_ssize_t count = has_threads(shared) ? PySequence_Fast_GET_SIZE(commits) : 0;
    for (Py_ssize_t place = 0; place < count; place++) {
        commit_t *commit = commit_of(PySequence_Fast_GET_ITEM(commits, place));
        if (!commit) {
            while ((commit = take_first(&list))) drop(commit);
            Py_DECREF(commits);
            return NULL;
        }
        append(&list, commit);
    }
    Py_DECREF(commits);
    if (count) {
        shared->under_way += count;
        pthread_mutex_lock(&shared->mutex);
        if (shared->pending.first) shared->pending.last->next = list.first;
        else shared->pending.first = list.first;
        shared->pending.last = list.last;
        bool wakes = shared->idle > 0;
        pthread_mutex_unlock(&shared->mutex);
        if (wakes) pthread_cond_signal(&shared->changed);
    }
    return PyLong_FromSsize_t(count);
}

/* Append to a list, which takes over the reference. Gives false, and raises nothing, if memory is short. */
static bool is_listed(PyObject *list, PyObject *item)
{
    bool is_good = item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    if (!is_good) PyErr_Clear();
    return is_good;
}

/* Append what became of a commit to `found`, and free it. Without memory for that, it ends once more. */
static void report(shared_t *shared, PyObject *found, commit_t *commit)
{
    if (!is_listed(found, Py_BuildValue("KiO", commit->number, commit->error,
                                        commit->is_written ? Py_True : Py_False))) {
        end(shared, commit);
        return;
    }
    shared->under_way--;
    drop(commit);
}

static PyObject *queue_ended(queue_t *self, PyObject *none)
{
    (void)none;
    shared_t *shared = opened(self);
    PyObject *found = shared ? PyList_New(0) : NULL;
    if (!found) return NULL;
    uint64_t count;
    if (read(shared->ready_fd, &count, sizeof count) < 0) return found; /* nothing has ended */
    pthread_mutex_lock(&shared->mutex);
    commit_t *ended = take_all(&shared->ended);
    pthread_mutex_unlock(&shared->mutex);
    for (commit_t *next; ended; ended = next) {
        next = ended->next;
        report(shared, found, ended);
    }
    /* The eventfd is silent until more ends, so nothing may be left behind in the kernel's ring. */
    struct io_event events[128];
    const long most = sizeof events / sizeof *events;
    long reaped;
    do {
        reaped = syscall(SYS_io_getevents, shared->context, 0L, most, events, NULL);
        for (long place = 0; place < reaped; place++) {
            commit_t *commit = (commit_t *)(uintptr_t)events[place].data;
            commit->error = events[place].res < 0 ? (int)-events[place].res : 0;
            report(shared, found, commit);
        }
    } while (reaped == most);
    return found;
}

static PyObject *queue_take_back(queue_t *self, PyObject *none)
{
    (void)none;
    shared_t *shared = opened(self);
    PyObject *numbers = shared ? PyList_New(0) : NULL;
    if (!numbers) return NULL;
    pthread_mutex_lock(&shared->mutex);
    commit_t *pending = take_all(&shared->pending), *written = take_all(&shared->written);
    pthread_mutex_unlock(&shared->mutex);
    list_t kept = {NULL, NULL}; /* there is no memory to name these: they stay where they are */
    for (commit_t *next; pending; pending = next) {
        next = pending->next;
        if (is_listed(numbers, PyLong_FromUnsignedLongLong(pending->number))) {
            shared->under_way--;
            drop(pending);
        } else append(&kept, pending);
    }
    if (kept.first) {
        pthread_mutex_lock(&shared->mutex);
        shared->pending = kept; /* nothing has been added: only the event loop adds to it */
        pthread_mutex_unlock(&shared->mutex);
        pthread_cond_signal(&shared->changed);
    }
    /* The thread that has written these is held up by another file. */
    commit_t *refused = submit_syncs(shared, written);
    if (refused) { /* a thread will try again */
        pthread_mutex_lock(&shared->mutex);
        for (commit_t *next; refused; refused = next) {
            next = refused->next;
            append(&shared->written, refused);
        }
        pthread_mutex_unlock(&shared->mutex);
        pthread_cond_signal(&shared->changed);
    }
    return numbers;
}

/* End the threads and free everything. Nothing is under way, so they are idle. */
static void close_shared(shared_t *shared)
{
    pthread_mutex_lock(&shared->mutex);
    shared->is_closing = true;
    pthread_mutex_unlock(&shared->mutex);
    pthread_cond_broadcast(&shared->changed);
    for (int place = 0; place < shared->threads; place++) pthread_join(shared->ids[place], NULL);
    syscall(SYS_io_destroy, shared->context);
    close(shared->ready_fd);
    pthread_cond_destroy(&shared->changed);
    pthread_mutex_destroy(&shared->mutex);
    PyMem_Free(shared);
}

static PyObject *queue_close(queue_t *self, PyObject *none)
{
    (void)none;
    shared_t *shared = opened(self);
    if (!shared) return NULL;
    if (shared->under_way) {
        PyErr_SetString(PyExc_ValueError, "commits are under way");
        return NULL;
    }
    self->shared = NULL;
    close_shared(shared);
    Py_RETURN_NONE;
}

static PyObject *queue_ready_fd(queue_t *self, void *none)
{
    (void)none;
    shared_t *shared = opened(self);
    return shared ? PyLong_FromLong(shared->ready_fd) : NULL;
}

static PyObject *queue_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    if (PyTuple_GET_SIZE(arguments) || (named && PyDict_GET_SIZE(named))) {
        PyErr_SetString(PyExc_TypeError, "Queue takes no arguments");
        return NULL;
    }
    queue_t *self = (queue_t *)type->tp_alloc(type, 0);
    shared_t *shared = self ? PyMem_Calloc(1, sizeof *shared) : NULL;
    if (!shared) {
        Py_XDECREF(self);
        return PyErr_NoMemory();
    }
    shared->ready_fd = -1;
    if (syscall(SYS_io_setup, (unsigned)SYNCS_MAX, &shared->context) == 0)
        shared->ready_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (shared->ready_fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        if (shared->context) syscall(SYS_io_destroy, shared->context);
        PyMem_Free(shared);
        Py_DECREF(self);
        return NULL;
    }
    pthread_mutex_init(&shared->mutex, NULL);
    pthread_cond_init(&shared->changed, NULL);
    self->shared = shared;
    return (PyObject *)self;
}

static void queue_dealloc(queue_t *self)
{
    /* While commits are under way, the threads and the kernel still use it: then it stays, with the buffers. */
    if (self->shared && !self->shared->under_way) close_shared(self->shared);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef queue_methods[] = {
    {"submit", (PyCFunction)queue_submit, METH_O, "Begin commits; gives how many were accepted."},
    {"ended", (PyCFunction)queue_ended, METH_NOARGS, "What has ended since the last call."},
    {"take_back", (PyCFunction)queue_take_back, METH_NOARGS, "Take back what has not begun."},
    {"close", (PyCFunction)queue_close, METH_NOARGS, "End the threads. Nothing may be under way."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef queue_attributes[] = {
    {"ready_fd", (getter)queue_ready_fd, NULL, "Readable while `ended` has something to give.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject queue_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "storage._commits.Queue",
    .tp_basicsize = sizeof(queue_t),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "See storage/commit_queue.py.",
    .tp_new = queue_new,
    .tp_dealloc = (destructor)queue_dealloc,
    .tp_methods = queue_methods,
    .tp_getset = queue_attributes,
};
#endif

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_commits", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__commits(void)
{
    PyObject *made = PyModule_Create(&module);
#ifdef __linux__
    if (made && PyModule_AddType(made, &queue_type) < 0) Py_CLEAR(made);
#endif
    return made;
}
