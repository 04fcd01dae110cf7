/* Blocking calls of a group from Python, on arrays as they are: a module of its own in this library, since finding where an
 * array lies and calling through the other one takes longer than a short call does. A call gives the engine's code, or None
 * for what is not as it usually is, and has done nothing then: Python looks at that. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "engine.h"

#define MOST_TAG INT32_MAX

typedef struct {
    PyObject_HEAD
    PyObject *owner; /* of the group */
    he_group *group;
    int64_t timeout_ns;
} Caller;

static void *address(PyObject *number) { return PyLong_AsVoidPtr(number); }

/* Where an object's memory is. 0 without an exception where it has none that is whole, or must not be written. */
static int take(PyObject *object, Py_buffer *view, int flags) {
    if (!PyObject_GetBuffer(object, view, flags)) return 1;
    if (PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Clear();
    return 0;
}

static PyObject *otherwise(void) {
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* The element type of a buffer of this machine's numbers; -1 for another one. */
static int dtype_of(const Py_buffer *view) {
    static const struct { char format; signed char nbytes, dtype; } all[] = {
        {'f', 4, HE_F32}, {'d', 8, HE_F64}, {'e', 2, HE_F16}, {'q', 8, HE_I64}, {'l', 8, HE_I64}, {'i', 4, HE_I32}, {'h', 2, HE_I16},
        {'b', 1, HE_I8}, {'Q', 8, HE_U64}, {'L', 8, HE_U64}, {'I', 4, HE_U32}, {'H', 2, HE_U16}, {'B', 1, HE_U8}, {'?', 1, HE_BOOL},
    };
    if (!view->format || view->format[1]) return -1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].format == view->format[0] && all[i].nbytes == view->itemsize) return all[i].dtype;
    return -1;
}

/* (call, counts, destination, source) */
static PyObject *collective(PyObject *self, PyObject *const *given, Py_ssize_t n) {
    Caller *caller = (Caller *)self;
    Py_buffer dst, src;
    if (n != 4) return PyErr_Format(PyExc_TypeError, "collective takes 4 arguments, not %zd", n);
    const he_call *call = address(given[0]);
    const int64_t *counts = address(given[1]);
    int in_place = given[2] == given[3];
    if (PyErr_Occurred() || !take(given[2], &dst, PyBUF_WRITABLE)) return otherwise();
    if (!in_place && !take(given[3], &src, PyBUF_SIMPLE)) {
        PyBuffer_Release(&dst);
        return otherwise();
    }
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = he_collective(caller->group, call, NULL, dst.buf, in_place ? dst.buf : src.buf, counts, caller->timeout_ns);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&dst);
    if (!in_place) PyBuffer_Release(&src);
    return PyLong_FromLong(code);
}

/* (array, rank, tag) */
static PyObject *pass(Caller *caller, int kind, PyObject *const *given, Py_ssize_t n) {
    he_group *g = caller->group;
    Py_buffer array;
    if (n != 3) return PyErr_Format(PyExc_TypeError, "a message takes 3 arguments, not %zd", n);
    if (!PyLong_Check(given[1]) || !PyLong_Check(given[2])) return otherwise();
    int64_t peer = PyLong_AsLongLong(given[1]), tag = PyLong_AsLongLong(given[2]);
    if (PyErr_Occurred()) PyErr_Clear(); /* -1 it is then */
    if (peer < 0 || peer >= g->size || peer == g->rank || tag < 0 || tag > MOST_TAG) return otherwise();
    if (!take(given[0], &array, PyBUF_ND | PyBUF_FORMAT | (kind == HE_SEND ? 0 : PyBUF_WRITABLE))) return otherwise();
    int code = HE_OK, dtype = dtype_of(&array);
    if (dtype >= 0) {
        Py_BEGIN_ALLOW_THREADS
        code = he_message_pass(g, kind, dtype, array.len / array.itemsize, array.buf, (int)peer, tag, caller->timeout_ns);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&array);
    return dtype >= 0 ? PyLong_FromLong(code) : otherwise();
}

static PyObject *send_now(PyObject *self, PyObject *const *given, Py_ssize_t n) { return pass((Caller *)self, HE_SEND, given, n); }

static PyObject *receive_now(PyObject *self, PyObject *const *given, Py_ssize_t n) { return pass((Caller *)self, HE_RECV, given, n); }

static PyObject *wait_at_most(PyObject *self, PyObject *timeout_ns) {
    int64_t ns = PyLong_AsLongLong(timeout_ns);
    if (PyErr_Occurred()) return NULL;
    ((Caller *)self)->timeout_ns = ns;
    Py_RETURN_NONE;
}

/* Caller(owner, group, timeout_ns) */
static PyObject *caller_new(PyTypeObject *type, PyObject *given, PyObject *named) {
    PyObject *owner, *group;
    long long timeout_ns;
    if (named && PyDict_Size(named)) return PyErr_Format(PyExc_TypeError, "a Caller takes no names");
    if (!PyArg_ParseTuple(given, "OOL", &owner, &group, &timeout_ns)) return NULL;
    void *at = address(group);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Caller *caller = PyErr_Occurred() ? NULL : (Caller *)allocate(type, 0);
    if (!caller) return NULL;
    caller->owner = Py_NewRef(owner);
    caller->group = at;
    caller->timeout_ns = timeout_ns;
    return (PyObject *)caller;
}

static void caller_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Caller *)self)->owner);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL, NULL
static PyMethodDef methods[] = {
    {"collective", FAST(collective)},
    {"send", FAST(send_now)},
    {"receive", FAST(receive_now)},
    {"wait_at_most", wait_at_most, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {{Py_tp_new, caller_new}, {Py_tp_dealloc, caller_free}, {Py_tp_methods, methods}, {0, NULL}};
static PyType_Spec spec = {"stack.comm.engine._caller.Caller", sizeof(Caller), 0, Py_TPFLAGS_DEFAULT, slots};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_caller", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__caller(void) {
    PyObject *module = PyModule_Create(&definition), *type = module ? PyType_FromSpec(&spec) : NULL;
    if (type && !PyModule_AddObjectRef(module, "Caller", type)) {
        Py_DECREF(type);
        return module;
    }
    Py_XDECREF(type);
    Py_XDECREF(module);
    return NULL;
}
