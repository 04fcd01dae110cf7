/* What operators of the PyTorch device spend most time with: telling their arguments as parts of a tape's
 * key, and telling torch the kind of its device, which it asks several times in each. `encode` does what the
 * Python of stack/bridge/torch/kernels.py does, which is the reference, and gives None where an argument is
 * not as usual: then Python does all of it again. Called under the lock of all tapes.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { SHIFT = 36 };
#define MASK ((1ULL << SHIFT) - 1)

/* What `bind` is given. */
static PyObject *Tensor, *Parameter, *Size, *DType, *yes, *no, *scalar;
static const struct {
    const char *name;
    PyObject **place;
} names[] = {
    {"Tensor", &Tensor}, {"Parameter", &Parameter}, {"Size", &Size}, {"DType", &DType},
    {"yes", &yes},       {"no", &no},               {"scalar", &scalar},
};

static PyObject *data_ptr, *dtype, *generation_, *number, *shape, *stride, *tape_, *value;
static const struct {
    const char *text;
    PyObject **place;
} words[] = {
    {"data_ptr", &data_ptr}, {"dtype", &dtype},   {"generation", &generation_}, {"number", &number},
    {"shape", &shape},       {"stride", &stride}, {"tape", &tape_},             {"value", &value},
};

/* What a call is about. */
struct call {
    PyObject *held, *tape, *generation, *operands, *numbers;
    Py_ssize_t before; /* Python numbers of the call that came earlier */
};

/* The number of the value that a tensor's storage has, and the byte in it. 1: done; 0: Python decides; -1: an
 * exception. */
static int place_of(const struct call *call, PyObject *x, PyObject **n, unsigned long long *byte)
{
    PyObject *pointer = PyObject_CallMethodObjArgs(x, data_ptr, NULL);
    if (pointer == NULL)
        return -1;
    unsigned long long at = PyLong_AsUnsignedLongLong(pointer);
    Py_DECREF(pointer);
    if (PyErr_Occurred())
        return -1;
    PyObject *slot = PyLong_FromUnsignedLongLong(at >> SHIFT);
    PyObject *storage = slot ? PyDict_GetItemWithError(call->held, slot) : NULL;
    Py_XDECREF(slot);
    if (storage == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(storage);
    int done = -1;
    PyObject *tape = PyObject_GetAttr(storage, tape_);
    PyObject *since = tape ? PyObject_GetAttr(storage, generation_) : NULL;
    if (since == NULL)
        goto end;
    if (tape != call->tape) {
        done = 0;
        goto end;
    }
    int same = since == call->generation ? 1 : PyObject_RichCompareBool(since, call->generation, Py_EQ);
    if (same < 0)
        goto end;
    *n = same ? PyObject_GetAttr(storage, value) : PyObject_CallMethodObjArgs(tape, number, storage, NULL);
    *byte = at & MASK;
    done = *n == NULL ? -1 : 1;
end:
    Py_XDECREF(since);
    Py_XDECREF(tape);
    Py_DECREF(storage);
    return done;
}

/* A tensor as what the tape knows of it; None: Python decides. */
static PyObject *operand_of(const struct call *call, PyObject *x)
{
    PyObject *n = NULL, *found = NULL;
    unsigned long long byte = 0;
    int done = place_of(call, x, &n, &byte);
    if (done < 0)
        return NULL;
    if (done == 0)
        Py_RETURN_NONE;
    PyObject *sizes = PyObject_GetAttr(x, shape);
    PyObject *steps = sizes ? PyObject_CallMethodObjArgs(x, stride, NULL) : NULL;
    PyObject *kind = steps ? PyObject_GetAttr(x, dtype) : NULL;
    PyObject *at = kind ? PyLong_FromUnsignedLongLong(byte) : NULL;
    PyObject *key = at ? PyTuple_Pack(5, n, at, sizes, steps, kind) : NULL;
    if (key != NULL) {
        found = PyDict_GetItemWithError(call->operands, key);
        if (found == NULL && !PyErr_Occurred())
            found = Py_None;
        Py_XINCREF(found);
    }
    Py_XDECREF(key);
    Py_XDECREF(at);
    Py_XDECREF(kind);
    Py_XDECREF(steps);
    Py_XDECREF(sizes);
    Py_DECREF(n);
    return found;
}

static PyObject *encoded(struct call *call, PyObject *args);

/* An argument as a part; Python's None, which is one, is told by `args` itself. */
static PyObject *part_of(struct call *call, PyObject *a)
{
    PyTypeObject *kind = Py_TYPE(a);
    if (kind == (PyTypeObject *)Tensor || kind == (PyTypeObject *)Parameter)
        return operand_of(call, a);
    if (kind == &PyFloat_Type) {
        PyObject *at = PyLong_FromSsize_t(call->before + PyList_Size(call->numbers));
        PyObject *made = at && PyList_Append(call->numbers, a) == 0
                             ? PyObject_CallFunctionObjArgs(scalar, at, NULL)
                             : NULL;
        Py_XDECREF(at);
        return made;
    }
    if (kind == &PyBool_Type)
        a = a == Py_True ? yes : no;
    else if (kind == &PyList_Type || kind == &PyTuple_Type || kind == (PyTypeObject *)Size)
        return encoded(call, a);
    else if (kind != &PyLong_Type && kind != &PyUnicode_Type && kind != (PyTypeObject *)DType)
        a = Py_None;
    Py_INCREF(a);
    return a;
}

/* Arguments as a tuple of parts; None: Python decides. */
static PyObject *encoded(struct call *call, PyObject *args)
{
    int is_list = PyList_Check(args);
    Py_ssize_t count = is_list ? PyList_Size(args) : PyTuple_Size(args);
    PyObject *parts = PyTuple_New(count);
    for (Py_ssize_t i = 0; parts && i < count; i++) {
        if (is_list && i >= PyList_Size(args)) { /* it became shorter on the way */
            Py_DECREF(parts);
            Py_RETURN_NONE;
        }
        PyObject *a = is_list ? PyList_GetItem(args, i) : PyTuple_GetItem(args, i);
        Py_INCREF(a);
        PyObject *part = part_of(call, a);
        int is_none = a == Py_None;
        Py_DECREF(a);
        if (part == NULL) {
            Py_DECREF(parts);
            return NULL;
        }
        if (part == Py_None && !is_none) {
            Py_DECREF(parts);
            return part;
        }
        PyTuple_SetItem(parts, i, part);
    }
    return parts;
}

static PyObject *encode(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    if (count != 6 || !(PyTuple_Check(given[0]) || PyList_Check(given[0])) || !PyDict_Check(given[1]) ||
        !PyDict_Check(given[4]) || !PyList_Check(given[5]))
        return PyErr_Format(PyExc_TypeError, "encode(args, held, tape, generation, operands, scalars)");
    struct call call = {given[1], given[2], given[3], given[4], PyList_New(0), PyList_Size(given[5])};
    if (call.numbers == NULL)
        return NULL;
    PyObject *parts = encoded(&call, given[0]);
    Py_ssize_t end = PyList_Size(given[5]);
    if (parts != NULL && parts != Py_None && PyList_Size(call.numbers) > 0 &&
        PyList_SetSlice(given[5], end, end, call.numbers) < 0)
        Py_CLEAR(parts);
    Py_DECREF(call.numbers);
    return parts;
}

/* Where tensors begin: for each the number of its value and the byte in it as one number. */
static PyObject *places(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    if (count != 5 || !PyTuple_Check(given[0]) || !PyDict_Check(given[1]))
        return PyErr_Format(PyExc_TypeError, "places(args, held, tape, generation, row)");
    struct call call = {given[1], given[2], given[3], NULL, NULL, 0};
    Py_ssize_t tensors = PyTuple_Size(given[0]);
    PyObject *made = PyTuple_New(tensors + 1);
    if (made == NULL)
        return NULL;
    Py_INCREF(given[4]);
    PyTuple_SetItem(made, 0, given[4]);
    for (Py_ssize_t i = 0; i < tensors; i++) {
        PyObject *n = NULL, *place = NULL;
        unsigned long long byte = 0;
        int done = place_of(&call, PyTuple_GetItem(given[0], i), &n, &byte);
        if (done > 0) {
            unsigned long long whole = PyLong_AsUnsignedLongLong(n);
            if (!PyErr_Occurred() && whole >> (64 - SHIFT))
                done = 0;
            else if (!PyErr_Occurred())
                place = PyLong_FromUnsignedLongLong(whole << SHIFT | byte);
            Py_DECREF(n);
        }
        if (place == NULL) {
            Py_DECREF(made);
            if (done == 0)
                Py_RETURN_NONE;
            return NULL;
        }
        PyTuple_SetItem(made, i + 1, place);
    }
    return made;
}

static PyObject *capsule(PyObject *module, PyObject *address)
{
    void *at = PyLong_AsVoidPtr(address);
    return at == NULL ? NULL : PyCapsule_New(at, "dltensor", NULL);
}

/* What torch's guard of the device answers, on any thread, with or without the interpreter. */

enum { KIND = 20 }; /* c10::DeviceType::PrivateUse1 */

static signed char guard_kind(void *guard)
{
    return KIND;
}

/* The current device, also of those that set another one: a c10::Device, kind and index. */
static struct device {
    signed char kind, index;
} guard_device(void *guard)
{
    return (struct device){KIND, 0};
}

/* Its one order of work: a c10::Stream. */
static struct stream {
    struct device device;
    long long id;
} guard_stream(void *guard)
{
    return (struct stream){{KIND, 0}, 0};
}

static signed char devices = 1;

static signed char guard_count(void *guard)
{
    return devices;
}

static PyObject *guards(PyObject *module, PyObject *count)
{
    long told = PyLong_AsLong(count);
    if (PyErr_Occurred())
        return NULL;
    if (told < 1 || told > 127)
        return PyErr_Format(PyExc_RuntimeError, "torch knows 1 to 127 devices of a kind, not %ld", told);
    devices = (signed char)told;
    return Py_BuildValue("NNNN", PyLong_FromVoidPtr((void *)guard_kind), PyLong_FromVoidPtr((void *)guard_device),
                         PyLong_FromVoidPtr((void *)guard_stream), PyLong_FromVoidPtr((void *)guard_count));
}

static PyObject *bind(PyObject *module, PyObject *given)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        PyObject *found = PyDict_GetItemString(given, names[i].name);
        if (found == NULL)
            return PyErr_Format(PyExc_KeyError, "bind needs %s", names[i].name);
        Py_INCREF(found);
        Py_XDECREF(*names[i].place);
        *names[i].place = found;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_O, "bind(given): the classes and values by their names"},
    {"capsule", capsule, METH_O, "capsule(address): a DLPack structure as torch takes it"},
    {"encode", (PyCFunction)(void (*)(void))encode, METH_FASTCALL,
     "encode(args, held, tape, generation, operands, scalars) -> parts, or None where Python decides"},
    {"guards", guards, METH_O,
     "guards(count) -> the addresses of what tells the kind of device, the current one, its stream, and their count"},
    {"places", (PyCFunction)(void (*)(void))places, METH_FASTCALL,
     "places(args, held, tape, generation, row) -> (row, *places), or None where Python decides"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "stack.bridge.torch._parts", .m_size = -1, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__parts(void)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if ((*words[i].place = PyUnicode_InternFromString(words[i].text)) == NULL)
            return NULL;
    return PyModule_Create(&definition);
}
