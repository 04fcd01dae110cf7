/* The hottest walks: an operation on a path that is known, and a view. Each does what the Python of
 * stack/framework/recorded.py and tensor.py does, which is the reference. What is not as it usually
 * is they leave to it: a single step, by calling it, or all, by giving None before any was taken.
 *
 * Values, tapes and places in the tree are of Python classes with slots. `bind` finds out where in
 * an object each slot lies by looking for what was put there: so the limited API is enough.
 *
 * Wherever Python runs, or an object is made (which may collect garbage), other threads may run: they
 * end this thread's tape, give a cell another leaf, and change what all share. What is used behind such
 * a place is held.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define AT(object, place) (*(PyObject **)((char *)(object) + (place)))

enum { OTHERWISE = -1, FAILED = -2 }; /* in the place of numbers: Python decides; an exception */

static struct {
    Py_ssize_t device, grad, grad_rules, hooks, link, node, number, owns, part, recording,
        requires_grad, serial, shown, waits, windows;
} cell;
static struct {
    Py_ssize_t cells, constants, device, ended, leaves, looked, room, stopped, tape, tracked;
} recording;
static struct {
    Py_ssize_t at, checks, inputs, keys, kin, leaves, row, types;
} tape;
static struct {
    Py_ssize_t checks, next, type;
} point;
static struct {
    Py_ssize_t last;
} kin;
static struct {
    Py_ssize_t seen;
} inference;
static struct {
    Py_ssize_t shown, steps, type;
} move;
static struct {
    Py_ssize_t dtype, shape;
} type_;
static struct {
    Py_ssize_t attrs, op, srcs, type;
} node;
static struct {
    Py_ssize_t block, failure, pool, readers, region, type, written;
} array;
static struct {
    Py_ssize_t label, nbytes, region;
} block;
static struct {
    Py_ssize_t nbytes;
} region;

static const struct {
    const char *kind, *name;
    Py_ssize_t *place;
} slots[] = {
    {"Tensor", "device", &cell.device},
    {"Tensor", "_grad", &cell.grad},
    {"Tensor", "_grad_rules", &cell.grad_rules},
    {"Tensor", "hooks", &cell.hooks},
    {"Tensor", "link", &cell.link},
    {"Tensor", "node", &cell.node},
    {"Tensor", "number", &cell.number},
    {"Tensor", "owns", &cell.owns},
    {"Tensor", "part", &cell.part},
    {"Tensor", "recording", &cell.recording},
    {"Tensor", "_requires_grad", &cell.requires_grad},
    {"Tensor", "serial", &cell.serial},
    {"Tensor", "shown", &cell.shown},
    {"Tensor", "_waits", &cell.waits},
    {"Tensor", "_windows", &cell.windows},
    {"CellTape", "_cells", &recording.cells},
    {"CellTape", "_constants", &recording.constants},
    {"CellTape", "device", &recording.device},
    {"CellTape", "_ended", &recording.ended},
    {"CellTape", "leaves", &recording.leaves},
    {"CellTape", "_looked", &recording.looked},
    {"CellTape", "room", &recording.room},
    {"CellTape", "_stopped", &recording.stopped},
    {"CellTape", "tape", &recording.tape},
    {"CellTape", "tracked", &recording.tracked},
    {"Tape", "at", &tape.at},
    {"Tape", "_checks", &tape.checks},
    {"Tape", "inputs", &tape.inputs},
    {"Tape", "keys", &tape.keys},
    {"Tape", "kin", &tape.kin},
    {"Tape", "leaves", &tape.leaves},
    {"Tape", "_row", &tape.row},
    {"Tape", "types", &tape.types},
    {"Point", "checks", &point.checks},
    {"Point", "next", &point.next},
    {"Point", "type", &point.type},
    {"Kin", "last", &kin.last},
    {"Inference", "seen", &inference.seen},
    {"Move", "shown", &move.shown},
    {"Move", "steps", &move.steps},
    {"Move", "type", &move.type},
    {"Type", "dtype", &type_.dtype},
    {"Type", "shape", &type_.shape},
    {"Node", "attrs", &node.attrs},
    {"Node", "op", &node.op},
    {"Node", "srcs", &node.srcs},
    {"Node", "type", &node.type},
    {"Array", "block", &array.block},
    {"Array", "failure", &array.failure},
    {"Array", "pool", &array.pool},
    {"Array", "readers", &array.readers},
    {"Array", "region", &array.region},
    {"Array", "type", &array.type},
    {"Array", "written", &array.written},
    {"SlabBlock", "label", &block.label},
    {"SlabBlock", "nbytes", &block.nbytes},
    {"SlabBlock", "region", &block.region},
    {"Region", "nbytes", &region.nbytes},
};

/* What `bind` is given, by name. */
static PyObject *Array, *Cell, *DType, *Life, *Link, *Listed, *Node, *Scalar, *Tensor, *Type, *Window, *autocast,
    *engines, *grad_mode, *here, *leaf_slots, *mode_key, *moves, *no_hooks, *note_window, *number_key, *of_arrays,
    *of_owners, *read_window, *recordable, *serials, *stale, *store, *tape_of, *told_of, *under_way, *write_window;
static const struct {
    const char *name;
    PyObject **place;
} names[] = {
    {"Array", &Array},
    {"Cell", &Cell},
    {"DType", &DType},
    {"Life", &Life},
    {"Link", &Link},
    {"Listed", &Listed},
    {"Node", &Node},
    {"Scalar", &Scalar},
    {"Tensor", &Tensor},
    {"Type", &Type},
    {"Window", &Window},
    {"arrays", &of_arrays},
    {"autocast", &autocast},
    {"engines", &engines},
    {"grad_mode", &grad_mode},
    {"here", &here},
    {"leaf_slots", &leaf_slots},
    {"mode_key", &mode_key},
    {"moves", &moves},
    {"no_hooks", &no_hooks},
    {"note_window", &note_window},
    {"number_key", &number_key},
    {"owners", &of_owners},
    {"read", &read_window},
    {"recordable", &recordable},
    {"serials", &serials},
    {"stale", &stale},
    {"store", &store},
    {"tape_of", &tape_of},
    {"told", &told_of},
    {"under_way", &under_way},
    {"write", &write_window},
};

/* Of a `WeakKeyDictionary` of leaves: the values by references, and what is called with that of a leaf that ends. */
static struct table {
    PyObject *data, *forget;
} arrays, owners;

enum { MOST_OPERANDS = 1024 }; /* that the stack of a thread holds */
enum { MOST = 4096 }; /* entries of each memory below */
static PyObject *of_floats, *of_ints, *of_bools; /* the operands that numbers are, by number */
static PyObject *of_lengths; /* operations on lists, by how many values these are */
static PyObject *throughs; /* windows through windows, by the addresses of both, which it holds */
static PyObject *moves_near; /* `moves` by the addresses of types, with these */
static PyObject *told; /* what `told` of kin tells of windows, by their addresses, with them */
static PyObject *empty, *one_more, *zero;
static allocfunc allocate, allocate_array, allocate_node;
static newfunc make_tuple;

static PyObject *a_numbered, *a__again, *a__last, *a__lives, *a__number, *a__returned, *a__stop, *a__usual, *a_acquire,
    *a_allocate, *a_append, *a__appended, *a_block, *a__call, *a_device, *a_dtype, *a_give, *a_input, *a_is_float, *a__let_go,
    *a_lock, *a_overwritten, *a_pool, *a_popleft, *a_put, *a_recordings, *a_region, *a_release, *a_replay, *a_run, *a_slot,
    *a_start, *a_step, *a_stop, *a_straight, *a_throttle, *a_through, *a_timeline, *a_type, *a_value;
static const struct {
    const char *text;
    PyObject **place;
} words[] = {
    {"_numbered", &a_numbered},
    {"_again", &a__again},
    {"_call", &a__call},
    {"_last", &a__last},
    {"_lives", &a__lives},
    {"_number", &a__number},
    {"_returned", &a__returned},
    {"_stop", &a__stop},
    {"_usual", &a__usual},
    {"acquire", &a_acquire},
    {"allocate", &a_allocate},
    {"append", &a_append},
    {"block", &a_block},
    {"device", &a_device},
    {"_appended", &a__appended},
    {"dtype", &a_dtype},
    {"give", &a_give},
    {"input", &a_input},
    {"is_float", &a_is_float},
    {"_let_go", &a__let_go},
    {"lock", &a_lock},
    {"overwritten", &a_overwritten},
    {"pool", &a_pool},
    {"popleft", &a_popleft},
    {"put", &a_put},
    {"recordings", &a_recordings},
    {"region", &a_region},
    {"release", &a_release},
    {"replay", &a_replay},
    {"run", &a_run},
    {"slot", &a_slot},
    {"start", &a_start},
    {"step", &a_step},
    {"stop", &a_stop},
    {"straight", &a_straight},
    {"throttle", &a_throttle},
    {"through", &a_through},
    {"timeline", &a_timeline},
    {"type", &a_type},
    {"value", &a_value},
};

static void put(PyObject *object, Py_ssize_t place, PyObject *value)
{
    PyObject *old = AT(object, place);
    Py_INCREF(value);
    AT(object, place) = value;
    Py_XDECREF(old);
}

/* A number that Python gave; FAILED where it raised. Takes the reference. */
static Py_ssize_t as_number(PyObject *found)
{
    if (found == NULL)
        return FAILED;
    Py_ssize_t n = PyLong_AsSsize_t(found);
    Py_DECREF(found);
    return n == -1 && PyErr_Occurred() ? FAILED : n;
}

static int is_cell(PyObject *x)
{
    return (PyObject *)Py_TYPE(x) == Tensor || PyObject_TypeCheck(x, (PyTypeObject *)Cell);
}

/* Whether an attribute of a fact is true. */
static int is_float(PyObject *type)
{
    PyObject *dtype = PyObject_GetAttr(type, a_dtype);
    PyObject *found = dtype ? PyObject_GetAttr(dtype, a_is_float) : NULL;
    int is = found ? found == Py_True : -1;
    Py_XDECREF(dtype);
    Py_XDECREF(found);
    return is;
}

/* The result of asking a switch, such as whether gradients are recorded. Borrowed, as it lives. */
static int is_on(PyObject *ask)
{
    PyObject *found = PyObject_CallNoArgs(ask);
    if (found == NULL)
        return FAILED;
    int on = found != Py_None && found != Py_False;
    Py_DECREF(found);
    return on;
}

/* Append a key, whose value has this type. */
static Py_ssize_t appended(PyObject *on, PyObject *key, PyObject *type)
{
    PyObject *types = AT(on, tape.types);
    if (PyList_Append(AT(on, tape.keys), key) < 0 || PyList_Append(types, type) < 0)
        return FAILED;
    return PyList_Size(types) - 1;
}

/* The type that is known of a result of a row, for operands of these types. A new reference; NULL
 * where it is not known, with an exception where looking failed. */
static PyObject *known_type(PyObject *known, PyObject *row, PyObject *operands)
{
    PyObject *local = known == Py_None ? NULL : PyTuple_Pack(2, row, operands);
    PyObject *seen = local ? PyDict_GetItemWithError(AT(known, inference.seen), local) : NULL;
    Py_XDECREF(local);
    if (seen == NULL || PyTuple_Size(PyTuple_GetItem(seen, 1)) != 0)
        return NULL;
    PyObject *type = PyTuple_GetItem(seen, 0);
    if ((PyObject *)Py_TYPE(type) != Type)
        return NULL;
    Py_INCREF(type);
    return type;
}

/* What `told` of kin tells of a window: whether it can be written, its skeleton, its row. A new
 * reference. */
static PyObject *told_about(PyObject *window)
{
    PyObject *key = PyLong_FromVoidPtr(window), *made = NULL, *entry;
    PyObject *held = key ? PyDict_GetItemWithError(told, key) : NULL;
    if (held != NULL) {
        made = PyTuple_GetItem(held, 0);
        Py_INCREF(made);
    } else if (key != NULL && !PyErr_Occurred() &&
               (made = PyObject_CallFunctionObjArgs(told_of, window, NULL)) != NULL) {
        if (PyDict_Size(told) >= MOST)
            PyDict_Clear(told);
        entry = PyTuple_Pack(2, made, window);
        if (entry == NULL || PyDict_SetItem(told, key, entry) < 0)
            Py_CLEAR(made);
        Py_XDECREF(entry);
    }
    Py_XDECREF(key);
    return made;
}

/* Whether sizes are of one skeleton, and those of `mine` that are in its row, which go to `row`. */
static int sizes_apart(PyObject *other, PyObject *mine, PyObject *row)
{
    Py_ssize_t count = PyTuple_Size(mine);
    if (PyTuple_Size(other) != count)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *a = PyTuple_GetItem(other, i), *b = PyTuple_GetItem(mine, i);
        if (!PyLong_CheckExact(a) || !PyLong_CheckExact(b))
            return 0;
        Py_ssize_t was = PyLong_AsSsize_t(a), is = PyLong_AsSsize_t(b);
        if ((was == -1 || is == -1) && PyErr_Occurred()) {
            PyErr_Clear();
            return 0; /* beyond what fits: Python decides */
        }
        if (was < 2 || is < 2) {
            if (was != is)
                return 0;
        } else if (PyList_Append(row, b) < 0)
            return FAILED;
    }
    return 1;
}

/* As `sizes_apart`, of windows. */
static int windows_apart(PyObject *other, PyObject *mine, PyObject *row)
{
    PyObject *was = told_about(other), *is = was ? told_about(mine) : NULL;
    int same = FAILED;
    if (is != NULL) {
        PyObject *more = PyTuple_GetItem(is, 2);
        same = PyTuple_GetItem(was, 1) == PyTuple_GetItem(is, 1); /* one object for equal ones */
        for (Py_ssize_t k = 0; same > 0 && k < PyTuple_Size(more); k++)
            same = PyList_Append(row, PyTuple_GetItem(more, k)) < 0 ? FAILED : 1;
    }
    Py_XDECREF(was);
    Py_XDECREF(is);
    return same;
}

/* As `sizes_apart`, of numbers among operands. */
static int numbers_apart(PyObject *other, PyObject *mine, PyObject *row)
{
    PyObject *kind = PyTuple_GetItem(mine, 0), *value = PyTuple_GetItem(mine, 1);
    int fixed = kind == (PyObject *)&PyBool_Type || PyUnicode_GetLength(PyTuple_GetItem(mine, 2)) > 0 ||
                PyUnicode_GetLength(PyTuple_GetItem(other, 2)) > 0;
    if (!fixed && kind == (PyObject *)&PyLong_Type) {
        PyObject *two = PyLong_FromLong(2);
        fixed = two == NULL ? FAILED
                            : PyObject_RichCompareBool(value, two, Py_LT) ||
                                  PyObject_RichCompareBool(PyTuple_GetItem(other, 1), two, Py_LT);
        Py_XDECREF(two);
    }
    if (fixed != 0)
        return fixed < 0 ? FAILED : PyObject_RichCompareBool(other, mine, Py_EQ);
    if (PyTuple_GetItem(other, 0) != kind)
        return 0;
    return PyList_Append(row, value) < 0 ? FAILED : 1;
}

/* Whether operands are of one skeleton, as `apart` of kin has it; what of `mine` is in its row goes
 * there. */
static int are_kin(PyObject *other, PyObject *mine, PyObject *row)
{
    PyObject *kind = (PyObject *)Py_TYPE(mine);
    if ((PyObject *)Py_TYPE(other) != kind)
        return 0;
    if (kind == Window)
        return windows_apart(other, mine, row);
    if (kind == Scalar)
        return numbers_apart(other, mine, row);
    if (kind == Type)
        return AT(other, type_.dtype) == AT(mine, type_.dtype)
                   ? sizes_apart(AT(other, type_.shape), AT(mine, type_.shape), row) : 0;
    if (kind == (PyObject *)&PyTuple_Type && PyTuple_Size(mine) > 0 && PyLong_CheckExact(PyTuple_GetItem(mine, 0)))
        return sizes_apart(other, mine, row);
    return other == mine ? 1 : PyObject_RichCompareBool(other, mine, Py_EQ);
}

/* The row of a key that is kin of the last one from a place: that one's own, where both are equal. A
 * new reference; NULL where it is no kin, with an exception where looking failed. */
static PyObject *row_of(PyObject *last, PyObject *key)
{
    PyObject *before = PyTuple_GetItem(last, 0), *old = PyTuple_GetItem(last, 3), *found, *row;
    Py_ssize_t count = PyTuple_Size(key), first = 0;
    int same = PyTuple_Size(before) == count;
    for (; same && first < count; first++) {
        PyObject *a = PyTuple_GetItem(before, first), *b = PyTuple_GetItem(key, first);
        if (a != b && !(PyLong_CheckExact(a) && PyLong_CheckExact(b) && PyLong_AsSsize_t(a) == PyLong_AsSsize_t(b)))
            break;
    }
    if (same && first == count) {
        Py_INCREF(old);
        return old;
    }
    if (!same || (found = PyList_New(0)) == NULL)
        return NULL;
    for (Py_ssize_t i = 0; same > 0 && i < count; i++) {
        PyObject *a = PyTuple_GetItem(before, i), *b = PyTuple_GetItem(key, i);
        int are_numbers = PyLong_CheckExact(a) && PyLong_CheckExact(b); /* of values, on the tape */
        same = are_numbers ? PyLong_AsSsize_t(a) == PyLong_AsSsize_t(b) : are_kin(a, b, found);
    }
    row = same > 0 ? PyList_AsTuple(found) : NULL;
    Py_DECREF(found);
    if (row != NULL && (same = PyObject_RichCompareBool(row, old, Py_EQ)) != 0) {
        Py_DECREF(row);
        row = same < 0 ? NULL : old;
        Py_XINCREF(row);
    }
    return row;
}

/* As `advance` from a place of kin from which the path went on by a key of this skeleton the last
 * time; `row` is this one's. */
static Py_ssize_t advance_among_kin(PyObject *on, PyObject *key, PyObject *row, PyObject *last)
{
    PyObject *wanted = PyTuple_GetItem(last, 1);
    PyObject *type = PyTuple_GetItem(last, 4), *types = AT(on, tape.types), *given, *next;
    Py_ssize_t count = PyTuple_Size(wanted), more = PyTuple_Size(row), seen = 0;
    int others = row != PyTuple_GetItem(last, 3);
    if ((given = PyTuple_New(count)) == NULL)
        return FAILED;
    for (Py_ssize_t i = 1; seen < count; i++) {
        PyObject *operand = PyTuple_GetItem(key, i);
        if (!PyLong_CheckExact(operand))
            continue;
        PyObject *one = PyList_GetItem(types, PyLong_AsSsize_t(operand));
        others |= one != PyTuple_GetItem(wanted, seen);
        Py_INCREF(one);
        PyTuple_SetItem(given, seen++, one);
    }
    if (others) {
        PyObject *found = known_type(PyTuple_GetItem(last, 5), row, given);
        /* One object for equal ones, by which they are known. */
        int same = found ? PyObject_RichCompareBool(found, type, Py_EQ) : 0;
        type = same > 0 ? type : found;
        next = type && found && same >= 0 ? PyTuple_Pack(6, key, given, PyTuple_GetItem(last, 2), row, type,
                                                         PyTuple_GetItem(last, 5)) : NULL;
        Py_XDECREF(found); /* the place has it, or else it is not used */
        if (next == NULL) {
            Py_DECREF(given);
            return PyErr_Occurred() ? FAILED : OTHERWISE;
        }
        put(AT(on, tape.kin), kin.last, next);
        Py_DECREF(next);
    }
    Py_DECREF(given);
    for (Py_ssize_t i = 0; i < more; i++)
        if (PyList_Append(AT(on, tape.row), PyTuple_GetItem(row, i)) < 0)
            return FAILED;
    put(on, tape.checks, empty);
    put(on, tape.kin, PyTuple_GetItem(last, 2));
    return appended(on, key, type);
}

/* The number of a key's value, which is on the tape then; OTHERWISE where it was not seen there. */
static Py_ssize_t advance(PyObject *on, PyObject *key)
{
    PyObject *among = AT(on, tape.kin), *type;
    if (among == Py_None) {
        PyObject *next = PyDict_GetItemWithError(AT(AT(on, tape.at), point.next), key);
        if (next == NULL)
            return PyErr_Occurred() ? FAILED : OTHERWISE;
        type = AT(next, point.type);
        if (type == Py_None || PyTuple_Check(type) || PyTuple_Size(AT(next, point.checks)) != 0)
            return OTHERWISE;
        put(on, tape.at, next);
    } else {
        PyObject *last = AT(among, kin.last); /* key, types of operands, place, row, type, inference */
        if (last == Py_None)
            return OTHERWISE;
        Py_INCREF(last);
        PyObject *row = row_of(last, key);
        Py_ssize_t n = row ? advance_among_kin(on, key, row, last) : PyErr_Occurred() ? FAILED : OTHERWISE;
        Py_XDECREF(row);
        Py_DECREF(last);
        return n;
    }
    return appended(on, key, type);
}

/* As `Tape.give` of a leaf that has an array. */
static Py_ssize_t give(PyObject *on, PyObject *leaf)
{
    PyObject *key = PyTuple_Pack(2, Py_None, AT(leaf, node.type));
    if (key == NULL)
        return FAILED;
    Py_ssize_t n = advance(on, key);
    Py_DECREF(key);
    if (n == OTHERWISE)
        return as_number(PyObject_CallMethodObjArgs(on, a_give, leaf, Py_False, NULL));
    PyObject *found = n < 0 ? NULL : PyLong_FromSsize_t(n);
    if (found == NULL)
        return FAILED;
    int failed = PyDict_SetItem(AT(on, tape.leaves), leaf, found);
    Py_DECREF(found);
    return failed || PyList_Append(AT(on, tape.inputs), leaf) < 0 ? FAILED : n;
}

/* The number of a leaf; OTHERWISE where it has no array of its type. */
static Py_ssize_t leaf_number(PyObject *on, PyObject *leaf)
{
    PyObject *known = PyDict_GetItemWithError(AT(on, tape.leaves), leaf);
    if (known != NULL)
        return PyLong_AsSsize_t(known);
    PyObject *ref = PyErr_Occurred() ? NULL : PyWeakref_NewRef(leaf, NULL);
    if (ref == NULL)
        return FAILED;
    PyObject *held = PyDict_GetItemWithError(arrays.data, ref);
    Py_DECREF(ref);
    if (held == NULL)
        return PyErr_Occurred() ? FAILED : OTHERWISE;
    if ((PyObject *)Py_TYPE(held) != Array)
        return OTHERWISE;
    PyObject *type = AT(held, array.type);
    Py_INCREF(held);
    Py_INCREF(type);
    int same = PyObject_RichCompareBool(type, AT(leaf, node.type), Py_EQ);
    if (same > 0)
        put(held, array.type, AT(leaf, node.type)); /* one object, which is found equal sooner */
    Py_DECREF(type);
    Py_DECREF(held);
    return same > 0 ? give(on, leaf) : same < 0 ? FAILED : OTHERWISE;
}

static Py_ssize_t number(PyObject *own, PyObject *x);

/* As `CellTape._number`. */
static Py_ssize_t plain_number(PyObject *own, PyObject *x)
{
    if (AT(x, cell.recording) == own)
        return PyLong_AsSsize_t(AT(x, cell.number));
    PyObject *link = AT(x, cell.link), *leaf = AT(x, cell.node);
    int requires = AT(x, cell.requires_grad) == Py_True;
    Py_ssize_t n = OTHERWISE;
    int is_here = PyObject_RichCompareBool(AT(x, cell.device), AT(own, recording.device), Py_EQ);
    if (is_here < 0)
        return FAILED;
    if (AT(x, cell.recording) != Py_None || AT(x, cell.part) != Py_None || !is_here)
        ;
    else if (link == Py_None) {
        if (leaf != NULL && (!requires || AT(x, cell.owns) == Py_True)) {
            Py_INCREF(leaf);
            n = leaf_number(AT(own, recording.tape), leaf);
            Py_DECREF(leaf);
        }
    } else if (PyTuple_GetItem(link, 3) == Py_None &&
               !(requires && PyTuple_GetItem(link, 2) == Py_True)) {
        Py_INCREF(link);
        n = number(own, PyTuple_GetItem(link, 0));
        if (n >= 0) {
            PyObject *whole = PyLong_FromSsize_t(n);
            PyObject *key = whole ? PyTuple_Pack(3, read_window, whole, PyTuple_GetItem(link, 1)) : NULL;
            Py_XDECREF(whole);
            PyObject *on = AT(own, recording.tape);
            n = key == NULL ? FAILED : advance(on, key);
            if (n == OTHERWISE)
                n = as_number(PyObject_CallMethodObjArgs(on, a_append, key, NULL));
            Py_XDECREF(key);
        }
        Py_DECREF(link);
        return n;
    }
    return n == OTHERWISE ? as_number(PyObject_CallMethodObjArgs(own, a__number, x, NULL)) : n;
}

/* As `CellTape.number`. */
static Py_ssize_t number(PyObject *own, PyObject *x)
{
    Py_ssize_t n = plain_number(own, x);
    if (n < 0 || AT(x, cell.requires_grad) != Py_True || AT(x, cell.owns) != Py_True)
        return n;
    PyObject *found = PyLong_FromSsize_t(n);
    if (found == NULL)
        return FAILED;
    PyObject *leaf = PyDict_GetItemWithError(AT(own, recording.leaves), found);
    if (leaf == NULL && !PyErr_Occurred() && AT(x, cell.recording) != own) {
        PyObject *ref = PyWeakref_NewRef(x, NULL);
        if (ref == NULL || PyDict_SetItem(AT(own, recording.leaves), found, ref) < 0)
            n = FAILED;
        Py_XDECREF(ref);
    } else if (leaf == NULL)
        n = PyErr_Occurred() ? FAILED : as_number(PyObject_CallMethodObjArgs(own, a_numbered, x, NULL));
    Py_DECREF(found);
    return n;
}

/* As `CellTape._stop`. */
static Py_ssize_t stopped(PyObject *own, PyObject *found)
{
    PyObject *key = PyList_GetItem(AT(AT(own, recording.tape), tape.keys), PyLong_AsSsize_t(found));
    if (key != NULL && PyTuple_GetItem(key, 0) == Py_None)
        return PyLong_AsSsize_t(found);
    PyObject *known = PyDict_GetItemWithError(AT(own, recording.stopped), found);
    if (known != NULL)
        return PyLong_AsSsize_t(known);
    return PyErr_Occurred() ? FAILED : as_number(PyObject_CallMethodObjArgs(own, a__stop, found, NULL));
}

/* A Python number as an operand. */
static PyObject *number_operand(PyObject *memory, PyObject *x)
{
    PyObject *found = PyDict_GetItemWithError(memory, x);
    if (found != NULL) {
        Py_INCREF(found);
        return found;
    }
    if (PyErr_Occurred() || (found = PyObject_CallFunctionObjArgs(number_key, x, NULL)) == NULL)
        return NULL;
    double value = memory == of_floats ? PyFloat_AsDouble(x) : 1;
    if (value == 0 || value != value)
        return found; /* of which a dictionary does not tell all apart */
    if (PyDict_Size(memory) >= MOST)
        PyDict_Clear(memory);
    if (PyDict_SetItem(memory, x, found) < 0)
        Py_CLEAR(found);
    return found;
}

/* Whether an argument other than a cell can be an operand. */
static int is_operand(PyObject *x)
{
    if (x == Py_None || PyFloat_CheckExact(x) || PyLong_CheckExact(x) || PyBool_Check(x) ||
        PyUnicode_CheckExact(x) || (PyObject *)Py_TYPE(x) == DType)
        return 1;
    if (!PyTuple_CheckExact(x))
        return 0;
    for (Py_ssize_t i = PyTuple_Size(x); i--;)
        if (!PyLong_CheckExact(PyTuple_GetItem(x, i)))
            return 0;
    return 1;
}

static PyObject *as_operand(PyObject *x)
{
    if (PyFloat_CheckExact(x))
        return number_operand(of_floats, x);
    if (PyLong_CheckExact(x))
        return number_operand(of_ints, x);
    if (PyBool_Check(x))
        return number_operand(of_bools, x);
    Py_INCREF(x);
    return x;
}

/* As `CellTape.operate`, for operands that are cells or `is_operand`. */
static Py_ssize_t operated(PyObject *own, PyObject *operation, PyObject *const *operands, Py_ssize_t count)
{
    int tracked = 0, all_constant = 0;
    if (count > MOST_OPERANDS)
        return OTHERWISE;
    PyObject *numbers[count + 1], *key = PyTuple_New(count + 1);
    Py_ssize_t n = FAILED, i;
    for (i = 0; i <= count; i++)
        numbers[i] = NULL;
    if (key == NULL)
        return FAILED;
    for (i = 0; i < count; i++) {
        PyObject *x = operands[i];
        if (!is_cell(x)) {
            if ((numbers[i] = as_operand(x)) == NULL)
                goto done;
            continue;
        }
        int requires = AT(x, cell.requires_grad) == Py_True;
        tracked |= requires;
        Py_ssize_t own_number = requires ? number(own, x) : plain_number(own, x);
        if (own_number < 0) {
            n = own_number;
            goto done;
        }
        if ((numbers[i] = PyLong_FromSsize_t(own_number)) == NULL)
            goto done;
    }
    PyObject *constants = AT(own, recording.constants);
    all_constant = PySet_Size(constants) > 0;
    for (i = 0; all_constant && i < count; i++)
        if (PyLong_CheckExact(numbers[i]) && (all_constant = PySet_Contains(constants, numbers[i])) < 0)
            goto done;
    if (all_constant) {
        n = OTHERWISE; /* it takes no memory before somebody asks */
        goto done;
    }
    if (tracked && (tracked = is_on(grad_mode)) < 0)
        goto done;
    put(own, recording.tracked, tracked ? Py_True : Py_False);
    for (i = 0; tracked && i < count; i++) {
        if (!is_cell(operands[i]) || AT(operands[i], cell.requires_grad) == Py_True)
            continue;
        Py_ssize_t without = stopped(own, numbers[i]);
        PyObject *found = without < 0 ? NULL : PyLong_FromSsize_t(without);
        if (found == NULL)
            goto done;
        Py_DECREF(numbers[i]);
        numbers[i] = found;
    }
    Py_INCREF(operation);
    PyTuple_SetItem(key, 0, operation);
    for (i = 0; i < count; i++) {
        PyTuple_SetItem(key, i + 1, numbers[i]);
        numbers[i] = NULL;
    }
    n = advance(AT(own, recording.tape), key);
    if (n == OTHERWISE)
        n = as_number(PyObject_CallMethodObjArgs(own, a__appended, key, NULL));
done:
    for (i = 0; i < count; i++)
        Py_XDECREF(numbers[i]);
    Py_DECREF(key);
    return n;
}

/* As `_without_node` of tensors. */
static PyObject *without_node(PyObject *device, int requires)
{
    PyObject *serial = PyIter_Next(serials);
    PyObject *made = serial ? allocate((PyTypeObject *)Tensor, 0) : NULL;
    if (made == NULL) {
        Py_XDECREF(serial);
        return NULL;
    }
    AT(made, cell.serial) = serial;
    put(made, cell.device, device);
    put(made, cell.requires_grad, requires ? Py_True : Py_False);
    put(made, cell.owns, Py_False);
    put(made, cell.link, Py_None);
    put(made, cell.hooks, no_hooks);
    put(made, cell.waits, Py_None);
    put(made, cell.windows, empty);
    put(made, cell.grad, Py_None);
    put(made, cell.grad_rules, empty);
    put(made, cell.recording, Py_None);
    put(made, cell.part, Py_None);
    return made;
}

/* As `on_tape` of tensors. */
static PyObject *on_tape(PyObject *own, Py_ssize_t n)
{
    PyObject *type = PyList_GetItem(AT(AT(own, recording.tape), tape.types), n);
    int requires = type == NULL ? -1 : AT(own, recording.tracked) == Py_True ? is_float(type) : 0;
    PyObject *made = requires < 0 ? NULL : without_node(AT(own, recording.device), requires);
    PyObject *place = made ? PyLong_FromSsize_t(n) : NULL;
    PyObject *ref = place ? PyWeakref_NewRef(made, NULL) : NULL;
    PyObject *one = ref ? PyLong_FromLong(requires ? 1 : 16) : NULL;
    PyObject *room = one ? PyNumber_Subtract(AT(own, recording.room), one) : NULL;
    if (room != NULL && AT(own, recording.ended) == Py_True) {
        PyObject *none = PyObject_CallMethodObjArgs(own, a_put, made, place, NULL);
        if (none == NULL)
            Py_CLEAR(made);
        Py_XDECREF(none);
    } else if (room != NULL && PyDict_SetItem(AT(own, recording.cells), place, ref) == 0) {
        put(made, cell.recording, own);
        put(made, cell.number, place);
        put(made, cell.shown, type);
        put(own, recording.room, room);
    } else
        Py_CLEAR(made);
    Py_XDECREF(place);
    Py_XDECREF(ref);
    Py_XDECREF(one);
    Py_XDECREF(room);
    return made;
}

/* This thread's tape of a device, which another thread may end any time. A new reference. */
static PyObject *current(PyObject *device)
{
    if (PyDict_Size(engines) == 0) {
        PyObject *all = PyObject_GetAttr(here, a_recordings);
        PyObject *found = all ? PyDict_GetItemWithError(all, device) : NULL;
        if (found != NULL && PyLong_AsLong(AT(found, recording.room)) <= 0)
            found = NULL;
        Py_XINCREF(found);
        Py_XDECREF(all);
        if (found != NULL || PyErr_Occurred())
            return found;
    }
    return PyObject_CallFunctionObjArgs(tape_of, device, NULL);
}

static PyObject *operate(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    for (Py_ssize_t i = 2; i < count; i++)
        if (!is_cell(args[i]) && !is_operand(args[i]))
            return PyLong_FromLong(OTHERWISE);
    Py_ssize_t n = operated(args[0], args[1], args + 2, count - 2);
    return n == FAILED ? NULL : PyLong_FromSsize_t(n);
}

static PyObject *number_of(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t n = number(args[0], args[1]);
    return n == FAILED ? NULL : PyLong_FromSsize_t(n);
}

/* How many values a list of cells is; 0 for what is none. A tuple of integers is none, but one
 * operand. */
static Py_ssize_t length(PyObject *x)
{
    int is_list = PyList_CheckExact(x);
    Py_ssize_t n = is_list ? PyList_Size(x) : PyTuple_CheckExact(x) ? PyTuple_Size(x) : 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!is_cell(is_list ? PyList_GetItem(x, i) : PyTuple_GetItem(x, i)))
            return 0;
    return n;
}

/* A `Listed` operation, remembered. A new reference. */
static PyObject *of_lists(PyObject *expression, PyObject *const *args, Py_ssize_t count)
{
    PyObject *lengths = PyTuple_New(count), *key, *found = NULL;
    for (Py_ssize_t i = 0; lengths != NULL && i < count; i++) {
        Py_ssize_t n = length(args[i]);
        PyObject *one = n > 0 ? PyLong_FromSsize_t(n) : Py_None;
        if (n == 0)
            Py_INCREF(one);
        if (one == NULL)
            Py_CLEAR(lengths);
        else
            PyTuple_SetItem(lengths, i, one);
    }
    key = lengths ? PyTuple_Pack(2, expression, lengths) : NULL;
    if (key != NULL && (found = PyDict_GetItemWithError(of_lengths, key)) != NULL)
        Py_INCREF(found);
    else if (key != NULL && !PyErr_Occurred() &&
             (found = PyObject_CallFunctionObjArgs(Listed, expression, lengths, NULL)) != NULL) {
        if (PyDict_Size(of_lengths) >= MOST)
            PyDict_Clear(of_lengths);
        if (PyDict_SetItem(of_lengths, key, found) < 0)
            Py_CLEAR(found);
    }
    Py_XDECREF(key);
    Py_XDECREF(lengths);
    return found;
}

/* As `operated`, for operands of which some are lists of cells. */
static Py_ssize_t operated_on_lists(PyObject *own, PyObject *expression, PyObject *const *args, Py_ssize_t count)
{
    PyObject *all[MOST_OPERANDS], *operation = of_lists(expression, args, count);
    Py_ssize_t number = 0, n = operation == NULL ? FAILED : OTHERWISE;
    for (Py_ssize_t i = 0; i < count && operation != NULL; i++) {
        Py_ssize_t values = length(args[i]);
        if (number + (values > 0 ? values : 1) > MOST_OPERANDS)
            goto done;
        if (values == 0)
            all[number++] = args[i];
        for (Py_ssize_t k = 0; k < values; k++)
            all[number++] = PyList_CheckExact(args[i]) ? PyList_GetItem(args[i], k) : PyTuple_GetItem(args[i], k);
        for (Py_ssize_t k = number - (values > 0 ? values : 1); k < number; k++)
            Py_INCREF(all[k]); /* another thread may change a list */
    }
    if (operation != NULL)
        n = operated(own, operation, all, number);
done:
    while (number--)
        Py_DECREF(all[number]);
    Py_XDECREF(operation);
    return n;
}

static PyObject *known(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *first = NULL;
    int lists = 0;
    if (PyList_Size(under_way) > 0)
        Py_RETURN_NONE;
    for (Py_ssize_t i = 1; i < count; i++) {
        if (is_cell(args[i]))
            first = i < 3 && first == NULL ? args[i] : first;
        else if (length(args[i]) > 0) {
            lists = 1;
            if (i == 1)
                first = PyList_CheckExact(args[i]) ? PyList_GetItem(args[i], 0) : PyTuple_GetItem(args[i], 0);
        } else if (!is_operand(args[i]))
            Py_RETURN_NOTIMPLEMENTED;
    }
    int can = first != NULL && (PyObject *)Py_TYPE(first) != Cell ? PySet_Contains(recordable, args[0]) : 0;
    PyObject *device = can > 0 ? AT(first, cell.device) : Py_None; /* first may be in a list that changes */
    Py_INCREF(device);
    int casts = can > 0 ? is_on(autocast) : 0;
    PyObject *own = can > 0 && casts == 0 ? current(device) : NULL, *made = NULL;
    Py_DECREF(device);
    if (PyErr_Occurred())
        return NULL;
    if (casts > 0)
        Py_RETURN_NOTIMPLEMENTED;
    if (own == NULL)
        Py_RETURN_NONE;
    if (PyList_Size(AT(AT(own, recording.tape), tape.inputs)) > PyLong_AsSsize_t(AT(own, recording.looked))) {
        PyObject *none = PyObject_CallMethodObjArgs(own, a__let_go, NULL);
        if (none == NULL)
            goto done;
        Py_DECREF(none);
    }
    Py_ssize_t n = lists ? operated_on_lists(own, args[0], args + 1, count - 1)
                         : operated(own, args[0], args + 1, count - 1);
    if (n >= 0)
        made = on_tape(own, n);
    else if (n == OTHERWISE) {
        made = Py_None;
        Py_INCREF(made);
    }
done:
    Py_DECREF(own);
    return made;
}

/* As `_plain` of moves; NULL without an exception for what is nothing of the kind. */
static PyObject *plain(PyObject *x)
{
    PyObject *found = NULL;
    if (PyLong_CheckExact(x) || PyUnicode_CheckExact(x) || x == Py_None || x == Py_Ellipsis) {
        Py_INCREF(x);
        return x;
    }
    if (Py_TYPE(x) == &PySlice_Type) {
        PyObject *ends[3] = {PyObject_GetAttr(x, a_start), PyObject_GetAttr(x, a_stop), PyObject_GetAttr(x, a_step)};
        int are_plain = 1;
        for (int i = 0; i < 3; i++)
            are_plain &= ends[i] != NULL && (ends[i] == Py_None || PyLong_CheckExact(ends[i]));
        if (are_plain)
            found = PyTuple_Pack(4, &PySlice_Type, ends[0], ends[1], ends[2]);
        for (int i = 0; i < 3; i++)
            Py_XDECREF(ends[i]);
        return found;
    }
    int is_list = PyList_CheckExact(x);
    if (!is_list && !PyTuple_CheckExact(x))
        return NULL;
    Py_ssize_t count = is_list ? PyList_Size(x) : PyTuple_Size(x);
    if (Py_EnterRecursiveCall(" in an index"))
        return NULL;
    if ((found = PyTuple_New(count + 1)) == NULL)
        goto left;
    PyObject *kind = (PyObject *)Py_TYPE(x);
    Py_INCREF(kind);
    PyTuple_SetItem(found, 0, kind);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = plain(is_list ? PyList_GetItem(x, i) : PyTuple_GetItem(x, i));
        if (one == NULL) {
            Py_CLEAR(found);
            goto left;
        }
        PyTuple_SetItem(found, i + 1, one);
    }
left:
    Py_LeaveRecursiveCall();
    return found;
}

/* `window.through(steps of the move)`, remembered. A new reference. */
static PyObject *through(PyObject *window, PyObject *moved)
{
    if (AT(moved, move.steps) == Py_None)
        Py_RETURN_NONE;
    PyObject *a = PyLong_FromVoidPtr(window), *b = PyLong_FromVoidPtr(moved);
    PyObject *key = a && b ? PyTuple_Pack(2, a, b) : NULL, *found = NULL, *held, *entry;
    Py_XDECREF(a);
    Py_XDECREF(b);
    if (key == NULL)
        return NULL;
    held = PyDict_GetItemWithError(throughs, key);
    if (held != NULL) {
        found = PyTuple_GetItem(held, 2);
        Py_INCREF(found);
    } else if (!PyErr_Occurred() &&
               (found = PyObject_CallMethodObjArgs(window, a_through, AT(moved, move.steps), NULL)) != NULL) {
        if (PyDict_Size(throughs) >= MOST)
            PyDict_Clear(throughs);
        entry = PyTuple_Pack(3, window, moved, found);
        if (entry == NULL || PyDict_SetItem(throughs, key, entry) < 0)
            Py_CLEAR(found);
        Py_XDECREF(entry);
    }
    Py_DECREF(key);
    return found;
}

static PyObject *through_a_move(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    return through(args[0], args[1]);
}

/* Note among the windows on a cell one more. */
static int note(PyObject *source, PyObject *window)
{
    if (!PyList_Check(AT(source, cell.windows))) {
        PyObject *first = PyList_New(0);
        if (first == NULL)
            return -1;
        if (!PyList_Check(AT(source, cell.windows))) /* another thread may note one meanwhile */
            put(source, cell.windows, first);
        Py_DECREF(first);
    }
    PyObject *all = AT(source, cell.windows);
    Py_ssize_t count = PyList_Size(all);
    if (count >= 16 && (count & (count - 1)) == 0) {
        PyObject *none = PyObject_CallFunctionObjArgs(note_window, source, window, NULL);
        Py_XDECREF(none);
        return none == NULL ? -1 : 0;
    }
    PyObject *ref = PyWeakref_NewRef(window, NULL);
    int failed = ref == NULL ? -1 : PyList_Append(all, ref);
    Py_XDECREF(ref);
    return failed;
}

/* As `_shown` of tensors. */
static PyObject *shown_by(PyObject *x, PyObject *moved, int tracked)
{
    PyObject *link = AT(x, cell.link), *source = x, *window = AT(moved, move.shown);
    PyObject *refusal = NULL, *made = NULL, *parts = NULL, *args = NULL, *linked = NULL;
    Py_INCREF(link);
    if (link == Py_None)
        Py_INCREF(window);
    else {
        source = PyTuple_GetItem(link, 0);
        refusal = PyTuple_GetItem(link, 4);
        window = through(PyTuple_GetItem(link, 1), moved);
    }
    if (window == NULL || window == Py_None) {
        Py_DECREF(link);
        return window;
    }
    PyObject *none = refusal == NULL ? PyUnicode_FromString("") : refusal;
    if (refusal != NULL)
        Py_INCREF(none);
    int requires = tracked ? is_float(AT(moved, move.type)) : 0;
    if (requires >= 0 && (made = without_node(AT(x, cell.device), requires)) != NULL &&
        (parts = PyTuple_Pack(5, source, window, Py_False, Py_None, none)) != NULL &&
        (args = PyTuple_Pack(1, parts)) != NULL &&
        (linked = make_tuple((PyTypeObject *)Link, args, NULL)) != NULL) {
        put(made, cell.link, linked);
        put(made, cell.shown, AT(moved, move.type));
        if (note(source, made) < 0)
            Py_CLEAR(made);
    } else
        Py_CLEAR(made);
    Py_XDECREF(linked);
    Py_XDECREF(args);
    Py_XDECREF(parts);
    Py_XDECREF(none);
    Py_DECREF(window);
    Py_DECREF(link);
    return made;
}

/* Whether nobody has a window on a cell any more; those that are gone are forgotten. */
static int is_seen_through_nothing(PyObject *x)
{
    PyObject *all = AT(x, cell.windows);
    if (!PyList_Check(all))
        return 1;
    for (Py_ssize_t i = PyList_Size(all); i--;)
        if (PyWeakref_GetObject(PyList_GetItem(all, i)) != Py_None)
            return 0;
    PyList_SetSlice(all, 0, PyList_Size(all), NULL);
    return 1;
}

/* As `CellTape.overwritten`: who looks from another thread finds it as it was,
 * or as it is then. */
static int overwrite(PyObject *own, PyObject *x, Py_ssize_t n)
{
    PyObject *place = PyLong_FromSsize_t(n), *ref = place ? PyWeakref_NewRef(x, NULL) : NULL, *none = NULL;
    PyObject *lock = ref ? PyObject_GetAttr(store, a_lock) : NULL; /* a fork makes another one */
    int done = -1;
    if (lock == NULL || (none = PyObject_CallMethodObjArgs(lock, a_acquire, NULL)) == NULL)
        goto done;
    Py_CLEAR(none);
    PyObject *room = AT(own, recording.room), *old = NULL;
    int is_usual = AT(x, cell.waits) == Py_None && AT(x, cell.part) == Py_None &&
                   AT(x, cell.requires_grad) != Py_True && AT(own, recording.ended) != Py_True &&
                   (AT(x, cell.recording) != Py_None || AT(x, cell.node) != NULL);
    PyObject *left = is_usual ? PyLong_FromLong(PyLong_AsLong(room) - 16) : NULL;
    if (left != NULL && PyDict_SetItem(AT(own, recording.cells), place, ref) == 0) {
        if (AT(x, cell.recording) == Py_None) {
            old = AT(x, cell.node);
            AT(x, cell.node) = NULL;
        }
        put(x, cell.recording, own);
        put(x, cell.number, place);
        put(x, cell.shown, PyList_GetItem(AT(AT(own, recording.tape), tape.types), n));
        put(x, cell.owns, Py_True);
        put(own, recording.room, left);
        done = is_seen_through_nothing(x);
    }
    Py_XDECREF(left);
    none = PyObject_CallMethodObjArgs(lock, a_release, NULL);
    Py_XDECREF(old);
    if (none == NULL || PyErr_Occurred()) {
        done = -1;
        goto done;
    }
    Py_DECREF(none);
    none = done > 0 ? NULL : !is_usual ? PyObject_CallMethodObjArgs(own, a_overwritten, x, place, NULL)
                                       : PyObject_CallFunctionObjArgs(stale, x, NULL);
    done = done > 0 || none != NULL ? 0 : -1;
    Py_XDECREF(none);
done:
    Py_XDECREF(lock);
    Py_XDECREF(ref);
    Py_XDECREF(place);
    return done;
}

static PyObject *overwrite_cell(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t n = PyLong_AsSsize_t(args[2]);
    if ((n == -1 && PyErr_Occurred()) || overwrite(args[0], args[1], n) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* The `Move` that an expression makes of values of x's type. Borrowed; NULL where it is none that
 * shows one window, with an exception where looking failed. */
static PyObject *known_move(PyObject *x, PyObject *expression, PyObject *const *args, Py_ssize_t count)
{
    PyObject *type, *key = NULL, *near = NULL, *place, *found, *entry, *moved = NULL;
    if (AT(x, cell.link) == Py_None && AT(x, cell.recording) == Py_None && AT(x, cell.part) == Py_None) {
        if (AT(x, cell.node) == NULL)
            return NULL;
        type = AT(AT(x, cell.node), node.type);
    } else
        type = AT(x, cell.shown);
    Py_INCREF(type);
    if ((place = PyLong_FromVoidPtr(type)) == NULL || (near = PyTuple_New(count + 2)) == NULL)
        goto done;
    Py_INCREF(expression);
    PyTuple_SetItem(near, 0, expression);
    Py_INCREF(place);
    PyTuple_SetItem(near, 1, place);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = plain(args[i]);
        if (one == NULL)
            goto done;
        PyTuple_SetItem(near, i + 2, one);
    }
    if ((found = PyDict_GetItemWithError(moves_near, near)) != NULL) {
        moved = PyTuple_GetItem(found, 1);
        goto done;
    }
    if (PyErr_Occurred() || (key = PyTuple_New(count + 2)) == NULL)
        goto done;
    for (Py_ssize_t i = 0; i < count + 2; i++) {
        PyObject *one = i == 1 ? type : PyTuple_GetItem(near, i);
        Py_INCREF(one);
        PyTuple_SetItem(key, i, one);
    }
    found = PyDict_GetItemWithError(moves, key);
    moved = found ? PyTuple_GetItem(found, 1) : NULL;
    if (moved == NULL || PyTuple_GetItem(found, 0) != Py_True || (moved = PyTuple_GetItem(moved, 0)) == NULL ||
        AT(moved, move.steps) == Py_None || PyTuple_Size(AT(moved, move.steps)) == 0) {
        moved = NULL;
        goto done;
    }
    if (PyDict_Size(moves_near) >= MOST)
        PyDict_Clear(moves_near);
    if ((entry = PyTuple_Pack(2, type, moved)) == NULL || PyDict_SetItem(moves_near, near, entry) < 0)
        moved = NULL;
    Py_XDECREF(entry);
done:
    Py_XDECREF(key);
    Py_XDECREF(near);
    Py_XDECREF(place);
    Py_DECREF(type);
    return moved;
}

static PyObject *view(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *x = args[1], *found, *moved;
    if (PyList_Size(under_way) > 0 || !is_cell(x))
        Py_RETURN_NONE;
    PyObject *link = AT(x, cell.link);
    if (link != Py_None && PyTuple_GetItem(link, 2) != Py_False)
        Py_RETURN_NONE;
    if ((moved = known_move(x, args[0], args + 2, count - 2)) == NULL) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    int requires = AT(x, cell.requires_grad) == Py_True;
    Py_INCREF(moved);
    int tracked = requires ? is_on(grad_mode) : 0;
    if (tracked < 0)
        found = NULL;
    else if (requires && !tracked) {
        found = Py_None;
        Py_INCREF(found);
    } else
        found = shown_by(x, moved, tracked);
    Py_DECREF(moved);
    return found;
}

/* The number of a value of this type; OTHERWISE for others. */
static Py_ssize_t number_of_type(PyObject *own, PyObject *x, PyObject *type)
{
    Py_ssize_t n = number(own, x);
    if (n < 0)
        return n;
    int same = PyObject_RichCompareBool(PyList_GetItem(AT(AT(own, recording.tape), tape.types), n), type, Py_EQ);
    return same < 0 ? FAILED : same ? n : OTHERWISE;
}

static PyObject *write_part(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *x = args[1], *value = args[3], *link, *of, *moved, *source, *window = NULL, *own = NULL, *key = NULL;
    int can = PyList_Size(under_way) == 0 && is_cell(x) && (PyObject *)Py_TYPE(value) == Tensor &&
              AT(x, cell.requires_grad) == Py_False && AT(value, cell.requires_grad) == Py_False;
    if (!can)
        Py_RETURN_FALSE;
    link = AT(x, cell.link);
    source = link == Py_None ? x : PyTuple_GetItem(link, 0);
    of = AT(value, cell.link) == Py_None ? value : PyTuple_GetItem(AT(value, cell.link), 0);
    /* What lies in the same memory may be what is written, and what is there may be copied at once. */
    if ((link != Py_None && PyTuple_GetItem(link, 2) != Py_False) || of == source ||
        (of == value && AT(value, cell.recording) == Py_None) || AT(source, cell.link) != Py_None ||
        AT(source, cell.requires_grad) != Py_False)
        Py_RETURN_FALSE;
    if ((moved = known_move(x, args[0], args + 2, 1)) == NULL) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_FALSE;
    }
    Py_INCREF(source);
    Py_INCREF(moved);
    window = link == Py_None ? AT(moved, move.shown) : through(PyTuple_GetItem(link, 1), moved);
    if (link == Py_None)
        Py_INCREF(window);
    PyObject *facts = window == NULL || window == Py_None ? NULL : told_about(window);
    can = facts != NULL && PyTuple_GetItem(facts, 0) == Py_True;
    Py_XDECREF(facts);
    can = can ? PyObject_RichCompareBool(AT(value, cell.device), AT(source, cell.device), Py_EQ) : 0;
    can = can > 0 ? PyObject_RichCompareBool(AT(value, cell.shown), AT(moved, move.type), Py_EQ) : 0;
    if (can <= 0 || PyErr_Occurred() || (own = current(AT(source, cell.device))) == NULL)
        goto done;
    can = 0;
    Py_ssize_t n = number_of_type(own, value, AT(moved, move.type)), whole = n < 0 ? n : number(own, source);
    PyObject *part = whole < 0 ? NULL : PyLong_FromSsize_t(n), *all = part ? PyLong_FromSsize_t(whole) : NULL;
    if (all != NULL)
        key = PyTuple_Pack(4, write_window, all, part, window);
    Py_XDECREF(part);
    Py_XDECREF(all);
    if (key == NULL)
        goto done;
    n = advance(AT(own, recording.tape), key);
    if (n == OTHERWISE)
        n = as_number(PyObject_CallMethodObjArgs(AT(own, recording.tape), a_append, key, NULL));
    can = n >= 0 && overwrite(own, source, n) == 0;
done:
    Py_XDECREF(key);
    Py_XDECREF(own);
    Py_XDECREF(window);
    Py_DECREF(moved);
    Py_DECREF(source);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(can > 0);
}

/* Note something of a leaf for as long as it lives, as a `WeakKeyDictionary` does. */
static int note_of_leaf(const struct table *table, PyObject *leaf, PyObject *value)
{
    PyObject *ref = PyWeakref_NewRef(leaf, table->forget);
    int failed = ref == NULL ? -1 : PyDict_SetItem(table->data, ref, value);
    Py_XDECREF(ref);
    return failed;
}

/* As a `WeakKeyDictionary` forgets a key that has ended: later, while somebody goes over its entries. */
static PyObject *forget(PyObject *of, PyObject *ref)
{
    PyObject *going = PyTuple_GetItem(of, 1);
    int failed;
    Py_INCREF(ref); /* nobody but the table holds it */
    if (going != Py_None && PySet_Size(going) > 0)
        failed = PyList_Append(PyTuple_GetItem(of, 2), ref);
    else if ((failed = PyDict_DelItem(PyTuple_GetItem(of, 0), ref)) < 0 && PyErr_ExceptionMatches(PyExc_KeyError)) {
        PyErr_Clear();
        failed = 0;
    }
    Py_DECREF(ref);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* What the table is of a dictionary. -1 with an exception. */
static int open_table(struct table *table, PyObject *dictionary)
{
    static PyMethodDef method = {"forget", forget, METH_O, "forget(reference): as a dictionary whose key has ended"};
    PyObject *data = PyObject_GetAttrString(dictionary, "data"), *of = NULL;
    PyObject *going = data ? PyObject_GetAttrString(dictionary, "_iterating") : NULL;
    PyObject *later = going ? PyObject_GetAttrString(dictionary, "_pending_removals") : NULL;
    if (data != NULL && later == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear(); /* a Python whose dictionaries are gone over by copies */
        of = PyTuple_Pack(3, data, Py_None, Py_None);
    } else if (later != NULL)
        of = PyTuple_Pack(3, data, going, later);
    PyObject *made = of ? PyCFunction_New(&method, of) : NULL;
    if (made != NULL) {
        Py_XDECREF(table->data);
        Py_XDECREF(table->forget);
        *table = (struct table){Py_NewRef(data), made};
    }
    Py_XDECREF(of);
    Py_XDECREF(later);
    Py_XDECREF(going);
    Py_XDECREF(data);
    return made ? 0 : -1;
}

/* As `Tensor(store.holding(array), device, owns=True)` outside traces. */
static PyObject *holding(PyObject *held, PyObject *device)
{
    PyObject *type = PyObject_GetAttr(held, a_type), *made = type ? without_node(device, 0) : NULL;
    PyObject *leaf = made ? allocate_node((PyTypeObject *)Node, 0) : NULL;
    PyObject *number = leaf ? PyIter_Next(leaf_slots) : NULL, *slot = number ? PyTuple_Pack(2, a_slot, number) : NULL;
    PyObject *attrs = slot ? PyTuple_Pack(1, slot) : NULL, *ref = attrs ? PyWeakref_NewRef(made, NULL) : NULL;
    if (ref != NULL) {
        put(leaf, node.op, a_input);
        put(leaf, node.type, type);
        put(leaf, node.srcs, empty);
        put(leaf, node.attrs, attrs);
        put(made, cell.node, leaf);
        put(made, cell.owns, Py_True);
    }
    if (ref == NULL || note_of_leaf(&arrays, leaf, held) < 0 || note_of_leaf(&owners, leaf, ref) < 0)
        Py_CLEAR(made);
    Py_XDECREF(ref);
    Py_XDECREF(attrs);
    Py_XDECREF(slot);
    Py_XDECREF(number);
    Py_XDECREF(leaf);
    Py_XDECREF(type);
    return made;
}

/* The leaf of a cell that has no other's memory and whose value is on no tape; else NULL. Borrowed. */
static PyObject *own_leaf(PyObject *x)
{
    if (AT(x, cell.link) != Py_None || AT(x, cell.recording) != Py_None || AT(x, cell.part) != Py_None)
        return NULL;
    return AT(x, cell.node);
}

/* Whether an argument is a tensor of a kind: its type, its device, and whether it requires a gradient. */
static int is_of_kind(PyObject *x, PyObject *kind)
{
    PyObject *leaf = (PyObject *)Py_TYPE(x) == Tensor ? own_leaf(x) : NULL;
    if (leaf == NULL || AT(x, cell.requires_grad) != PyTuple_GetItem(kind, 2))
        return 0;
    Py_INCREF(leaf);
    int same = PyObject_RichCompareBool(AT(leaf, node.type), PyTuple_GetItem(kind, 0), Py_EQ);
    Py_DECREF(leaf);
    return same > 0 ? PyObject_RichCompareBool(AT(x, cell.device), PyTuple_GetItem(kind, 1), Py_EQ) : same;
}

/* The array of a source; NULL where there is none yet, with an exception where looking failed. A new reference. */
static PyObject *array_of(PyObject *source, PyObject *given)
{
    PyObject *held = source;
    if (PyLong_CheckExact(source) || is_cell(source)) {
        PyObject *leaf = own_leaf(PyLong_CheckExact(source) ? PyTuple_GetItem(given, PyLong_AsSsize_t(source)) : source);
        PyObject *ref = leaf ? PyWeakref_NewRef(leaf, NULL) : NULL;
        held = ref ? PyDict_GetItemWithError(arrays.data, ref) : NULL;
        Py_XINCREF(held);
        Py_XDECREF(ref);
        return held;
    }
    Py_INCREF(held);
    return held;
}

/* Whether a call is of the kind that a usual plan is for, and its trace would be the same now. */
static int is_usual(PyObject *usual, PyObject *given)
{
    PyObject *kinds = PyTuple_GetItem(usual, 0), *found;
    Py_ssize_t count = PyTuple_Size(given);
    int same = PyList_Size(under_way) == 0 && count == PyTuple_Size(kinds);
    for (Py_ssize_t i = 0; same > 0 && i < count; i++)
        same = is_of_kind(PyTuple_GetItem(given, i), PyTuple_GetItem(kinds, i));
    if (same <= 0)
        return same;
    if ((found = PyObject_CallNoArgs(mode_key)) == NULL)
        return FAILED;
    same = PyObject_RichCompareBool(found, PyTuple_GetItem(usual, 1), Py_EQ);
    Py_DECREF(found);
    return same > 0 && PyTuple_GetItem(usual, 2) != Py_None ? is_on(PyTuple_GetItem(usual, 2)) : same;
}

/* Whether arrays are what a plan takes, and have their values. Appends where they are. */
static int fit(PyObject *inputs, PyObject *types, PyObject *pool, PyObject *regions)
{
    Py_ssize_t count = PyList_Size(inputs);
    int same = count == PyTuple_Size(types);
    for (Py_ssize_t i = 0; same > 0 && i < count; i++) {
        PyObject *one = PyList_GetItem(inputs, i);
        if ((PyObject *)Py_TYPE(one) != Array || AT(one, array.pool) != pool || AT(one, array.region) == NULL)
            return 0;
        if ((same = PyObject_RichCompareBool(AT(one, array.type), PyTuple_GetItem(types, i), Py_EQ)) > 0)
            same = PyList_Append(regions, AT(one, array.region)) < 0 ? FAILED : 1;
    }
    return same;
}

/* As `ArrayMemory._ended`. */
static PyObject *array_ended(PyObject *memory, PyObject *life)
{
    PyObject *lives = PyObject_GetAttr(memory, a__lives), *id = lives ? PyLong_FromVoidPtr(life) : NULL;
    Py_INCREF(life); /* nobody but the table holds it */
    PyObject *pool = id && PyDict_DelItem(lives, id) == 0 ? PyObject_GetAttr(memory, a_pool) : NULL;
    PyObject *returned = pool ? PyObject_GetAttr(pool, a__returned) : NULL;
    PyObject *given = returned ? PyObject_GetAttr(life, a_block) : NULL;
    PyObject *none = given ? PyObject_CallMethodObjArgs(returned, a_append, given, NULL) : NULL;
    Py_XDECREF(given);
    Py_XDECREF(returned);
    Py_XDECREF(pool);
    Py_DECREF(life);
    Py_XDECREF(id);
    Py_XDECREF(lives);
    return none;
}

/* The block of a pool that came back first, if it has just so many bytes: `Pool.allocate` would give it, too. NULL
 * without an exception where it has not, or there is none. */
static PyObject *block_again(PyObject *pool, PyObject *label, Py_ssize_t wanted)
{
    PyObject *returned = PyObject_GetAttr(pool, a__returned), *found = NULL;
    if (returned != NULL && PyObject_Size(returned) > 0)
        found = PySequence_GetItem(returned, 0);
    Py_ssize_t nbytes = found ? PyLong_AsSsize_t(AT(found, block.nbytes)) : -1;
    Py_XDECREF(found);
    /* Nobody runs between that look and this: whoever appends, appends at the end. */
    found = nbytes == wanted ? PyObject_CallMethodObjArgs(returned, a_popleft, NULL) : NULL;
    if (found != NULL) {
        put(found, block.label, label);
        PyObject *count = PyObject_GetAttr(pool, a__again), *more = count ? PyNumber_Add(count, one_more) : NULL;
        if (more == NULL || PyObject_SetAttr(pool, a__again, more) < 0)
            Py_CLEAR(found);
        Py_XDECREF(more);
        Py_XDECREF(count);
    }
    Py_XDECREF(returned);
    return found;
}

/* As `ArrayMemory.allocate`; `made` is the type, the label, the bytes, and those of a block for them. */
static PyObject *new_array(PyObject *memory, PyObject *pool, PyObject *made)
{
    static PyMethodDef method = {"ended", array_ended, METH_O, "ended(life): as `ArrayMemory._ended`"};
    PyObject *type = PyTuple_GetItem(made, 1), *label = PyTuple_GetItem(made, 2), *nbytes = PyTuple_GetItem(made, 3);
    PyObject *held = block_again(pool, label, PyLong_AsSsize_t(PyTuple_GetItem(made, 4))), *shown;
    if (held == NULL)
        return PyErr_Occurred() ? NULL : PyObject_CallMethodObjArgs(memory, a_allocate, type, label, nbytes, NULL);
    shown = AT(held, block.region);
    if (shown == Py_None || PyLong_AsSsize_t(AT(shown, region.nbytes)) != PyLong_AsSsize_t(nbytes))
        shown = PyObject_CallMethodObjArgs(pool, a_region, held, nbytes, NULL);
    else
        Py_INCREF(shown);
    PyObject *one = shown ? allocate_array((PyTypeObject *)Array, 0) : NULL;
    if (one != NULL) {
        put(one, array.pool, pool);
        put(one, array.type, type);
        put(one, array.block, held);
        put(one, array.region, shown);
        put(one, array.written, zero);
        put(one, array.readers, empty);
        put(one, array.failure, Py_None);
    }
    PyObject *ended = one ? PyCFunction_New(&method, memory) : NULL, *lives = NULL, *id = NULL;
    PyObject *life = ended ? PyObject_CallFunctionObjArgs(Life, one, ended, NULL) : NULL;
    if (life == NULL || PyObject_SetAttr(life, a_block, held) < 0 || (id = PyLong_FromVoidPtr(life)) == NULL ||
        (lives = PyObject_GetAttr(memory, a__lives)) == NULL || PyDict_SetItem(lives, id, life) < 0)
        Py_CLEAR(one);
    Py_XDECREF(id);
    Py_XDECREF(lives);
    Py_XDECREF(life);
    Py_XDECREF(ended);
    Py_XDECREF(shown);
    Py_DECREF(held);
    return one;
}

/* As `Replay.submit` of a graph, whose slots are what `chosen` has of the regions. The point at which it ends. */
static PyObject *replay_graph(PyObject *stream, PyObject *graph, PyObject *chosen, PyObject *regions)
{
    PyObject *slots = PyObject_CallFunctionObjArgs(chosen, regions, NULL), *point = NULL;
    PyObject *timeline = slots ? PyObject_GetAttr(stream, a_timeline) : NULL;
    PyObject *device = timeline ? PyObject_GetAttr(stream, a_device) : NULL;
    if (device != NULL)
        point = PyObject_CallMethodObjArgs(device, a_replay, graph, slots, timeline, empty, NULL);
    if (point != NULL && PyObject_SetAttr(stream, a__last, point) < 0)
        Py_CLEAR(point);
    Py_XDECREF(device);
    Py_XDECREF(timeline);
    Py_XDECREF(slots);
    return point;
}

/* Submit, and note at which point of the stream the arrays are written. */
static int submit(PyObject *straight, PyObject *regions, PyObject *outputs)
{
    PyObject *stream = PyTuple_GetItem(straight, 0), *kind, *error, *trace, *none;
    PyObject *lock = PyObject_GetAttr(stream, a_lock);
    PyObject *held = lock ? PyObject_CallMethodObjArgs(lock, a_acquire, NULL) : NULL;
    int done = -1;
    if (held != NULL) {
        PyObject *last = replay_graph(stream, PyTuple_GetItem(straight, 5), PyTuple_GetItem(straight, 6), regions);
        PyObject *written = last ? PyObject_GetAttr(last, a_value) : NULL;
        for (Py_ssize_t i = 0; written != NULL && i < PyTuple_Size(outputs); i++)
            put(PyTuple_GetItem(outputs, i), array.written, written);
        done = written == NULL ? -1 : 0;
        Py_XDECREF(written);
        Py_XDECREF(last);
        PyErr_Fetch(&kind, &error, &trace);
        none = PyObject_CallMethodObjArgs(lock, a_release, NULL);
        Py_XDECREF(none);
        if (kind != NULL)
            PyErr_Restore(kind, error, trace);
        Py_DECREF(held);
    }
    Py_XDECREF(lock);
    return done;
}

/* As `Plan.run` of a plan that has a straight way, where the inputs fit. NULL without an exception where Python
 * decides: nothing was done then. */
static PyObject *run_straight(PyObject *straight, PyObject *inputs)
{
    PyObject *none = PyObject_CallMethodObjArgs(PyTuple_GetItem(straight, 0), a_throttle, NULL);
    PyObject *regions = none ? PyList_New(0) : NULL, *made = PyTuple_GetItem(straight, 3), *outputs = NULL;
    Py_XDECREF(none);
    PyObject *pool = PyTuple_GetItem(straight, 2), *memory = PyTuple_GetItem(straight, 4);
    int same = regions ? fit(inputs, PyTuple_GetItem(straight, 1), pool, regions) : 0;
    Py_ssize_t count = PyTuple_Size(made);
    if (same > 0 && (outputs = PyTuple_New(count)) != NULL)
        for (Py_ssize_t i = 0; i < count && outputs != NULL; i++) {
            PyObject *one = new_array(memory, pool, PyTuple_GetItem(made, i));
            if (one == NULL || PyTuple_SetItem(outputs, i, one) < 0 ||
                PyList_Append(regions, AT(one, array.region)) < 0)
                Py_CLEAR(outputs);
        }
    if (outputs != NULL && submit(straight, regions, outputs) < 0)
        Py_CLEAR(outputs);
    Py_XDECREF(regions);
    return outputs;
}

/* As `Plan.run`. */
static PyObject *run(PyObject *plan, PyObject *inputs)
{
    PyObject *straight = PyObject_GetAttr(plan, a_straight); /* gone where its memory was given to others */
    PyObject *outputs = straight && straight != Py_None ? run_straight(straight, inputs) : NULL;
    Py_XDECREF(straight);
    if (outputs == NULL && !PyErr_Occurred())
        outputs = PyObject_CallMethodObjArgs(plan, a_run, inputs, NULL);
    return outputs;
}

/* A call of a captured function that is as it usually is. NULL without an exception where Python decides: nothing was
 * done then. */
static PyObject *replay(PyObject *usual, PyObject *given)
{
    PyObject *sources = PyTuple_GetItem(usual, 4), *device = PyTuple_GetItem(usual, 5);
    PyObject *whole = PyTuple_GetItem(usual, 7), *inputs, *outputs, *tensors, *each, *made = NULL;
    Py_ssize_t number = PyTuple_Size(sources), results = PyLong_AsSsize_t(PyTuple_GetItem(usual, 6));
    int same = is_usual(usual, given);
    if (same <= 0 || (inputs = PyList_New(number)) == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < number; i++) {
        PyObject *held = array_of(PyTuple_GetItem(sources, i), given);
        if (held == NULL) {
            Py_DECREF(inputs);
            return NULL;
        }
        PyList_SetItem(inputs, i, held);
    }
    outputs = run(PyTuple_GetItem(usual, 3), inputs);
    Py_DECREF(inputs);
    if (outputs == NULL)
        return NULL;
    if (whole == Py_None)
        made = holding(PyTuple_GetItem(outputs, 0), device);
    else if ((tensors = PyList_New(0)) != NULL) {
        int failed = 0;
        for (Py_ssize_t i = 0; i < results && !failed; i++) {
            PyObject *one = holding(PyTuple_GetItem(outputs, i), device);
            failed = one == NULL || PyList_Append(tensors, one) < 0;
            Py_XDECREF(one);
        }
        each = failed ? NULL : PyObject_GetIter(tensors);
        made = each ? PyObject_CallFunctionObjArgs(whole, each, NULL) : NULL;
        Py_XDECREF(each);
        Py_DECREF(tensors);
    }
    Py_DECREF(outputs);
    return made;
}

/* As `_call` of a captured function, which it leaves to that where the call is not as it usually is. */
static PyObject *call_or_replay(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *usual = PyObject_GetAttr(self, a__usual), *made = NULL, *call;
    if (usual != NULL && usual != Py_None && (kwargs == NULL || PyDict_Size(kwargs) == 0))
        made = replay(usual, args);
    Py_XDECREF(usual);
    if (made == NULL && !PyErr_Occurred() && (call = PyObject_GetAttr(self, a__call)) != NULL) {
        made = PyObject_Call(call, args, kwargs);
        Py_DECREF(call);
    }
    return made;
}

static PyType_Slot replaying_slots[] = {
    {Py_tp_doc, "A function that calls `_call`, but for calls that `_usual` says how to make."},
    {Py_tp_call, call_or_replay},
    {0, NULL},
};
static PyType_Spec replaying_spec = {
    .name = "stack.recorder._walk.Replaying", .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, .slots = replaying_slots,
};

/* Where in objects of a class the slot of a name lies; -1 with an exception. */
static Py_ssize_t place_of(PyObject *kind, const char *name)
{
    PyObject *size = PyObject_GetAttrString(kind, "__basicsize__");
    Py_ssize_t end = size ? PyLong_AsSsize_t(size) : -1, found = -1;
    Py_XDECREF(size);
    allocfunc make = (allocfunc)PyType_GetSlot((PyTypeObject *)kind, Py_tp_alloc);
    PyObject *object = end < 0 ? NULL : make((PyTypeObject *)kind, 0);
    PyObject *sign = object ? PyList_New(0) : NULL;
    PyObject *slot = sign ? PyObject_GetAttrString(kind, name) : NULL;
    PyObject *set = slot ? PyObject_CallMethod(slot, "__set__", "OO", object, sign) : NULL;
    for (Py_ssize_t at = sizeof(PyObject); set && at + (Py_ssize_t)sizeof sign <= end; at += sizeof sign)
        if (AT(object, at) == sign)
            found = at;
    PyObject *unset = found < 0 ? NULL : PyObject_CallMethod(slot, "__delete__", "O", object);
    if (unset == NULL) {
        found = -1;
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ImportError, "objects of %R have no slot for %s", kind, name);
    }
    Py_XDECREF(unset);
    Py_XDECREF(set);
    Py_XDECREF(slot);
    Py_XDECREF(sign);
    Py_XDECREF(object);
    return found;
}

static PyObject *bind(PyObject *module, PyObject *given)
{
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        PyObject *kind = PyDict_GetItemString(given, slots[i].kind);
        if (kind == NULL)
            return PyErr_Format(PyExc_KeyError, "bind needs %s", slots[i].kind);
        if ((*slots[i].place = place_of(kind, slots[i].name)) < 0)
            return NULL;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        PyObject *found = PyDict_GetItemString(given, names[i].name);
        if (found == NULL)
            return PyErr_Format(PyExc_KeyError, "bind needs %s", names[i].name);
        Py_INCREF(found);
        Py_XDECREF(*names[i].place);
        *names[i].place = found;
    }
    if (open_table(&arrays, of_arrays) < 0 || open_table(&owners, of_owners) < 0)
        return NULL;
    allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)Tensor, Py_tp_alloc);
    allocate_array = (allocfunc)PyType_GetSlot((PyTypeObject *)Array, Py_tp_alloc);
    allocate_node = (allocfunc)PyType_GetSlot((PyTypeObject *)Node, Py_tp_alloc);
    make_tuple = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_O, "bind(given): the classes, functions and tables by their names"},
    {"operate", (PyCFunction)(void (*)(void))operate, METH_FASTCALL,
     "operate(recording, operation, *operands) -> number: as CellTape.operate"},
    {"known", (PyCFunction)(void (*)(void))known, METH_FASTCALL,
     "known(expression, *operands) -> tensor; None where it is not for a tape, NotImplemented for other operands"},
    {"number", (PyCFunction)(void (*)(void))number_of, METH_FASTCALL,
     "number(recording, cell) -> number: as CellTape.number"},
    {"overwrite", (PyCFunction)(void (*)(void))overwrite_cell, METH_FASTCALL,
     "overwrite(recording, cell, number): as CellTape.overwritten"},
    {"through", (PyCFunction)(void (*)(void))through_a_move, METH_FASTCALL,
     "through(window, move) -> what the move's steps show of what the window shows, or None"},
    {"view", (PyCFunction)(void (*)(void))view, METH_FASTCALL,
     "view(expression, tensor, *arguments) -> window, or None where Python decides"},
    {"write", (PyCFunction)(void (*)(void))write_part, METH_FASTCALL,
     "write(expression, tensor, place, value) -> whether the part of the tensor that the expression shows is the value "
     "now; else Python decides"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "stack.recorder._walk", .m_size = -1, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__walk(void)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if ((*words[i].place = PyUnicode_InternFromString(words[i].text)) == NULL)
            return NULL;
    of_floats = PyDict_New();
    of_ints = PyDict_New();
    of_bools = PyDict_New();
    of_lengths = PyDict_New();
    throughs = PyDict_New();
    told = PyDict_New();
    moves_near = PyDict_New();
    empty = PyTuple_New(0);
    one_more = PyLong_FromLong(1);
    zero = PyLong_FromLong(0);
    if (!of_floats || !of_ints || !of_bools || !of_lengths || !throughs || !told || !moves_near || !empty || !one_more ||
        !zero)
        return NULL;
    PyObject *made = PyModule_Create(&definition), *replaying = made ? PyType_FromSpec(&replaying_spec) : NULL;
    if (replaying == NULL || PyModule_AddObjectRef(made, "Replaying", replaying) < 0)
        Py_CLEAR(made);
    Py_XDECREF(replaying);
    return made;
}
