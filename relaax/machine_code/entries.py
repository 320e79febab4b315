"""The C code of the library's entries: functions that Python calls, which check the arguments and call the kernels.

The code includes no header of Python or numpy, as a machine that builds it may have none. It declares the few functions
of Python's stable interface that it calls, and the first fields of an array, whose layout `prebuilt` checks when it
loads the library.
"""

from __future__ import annotations

from collections.abc import Sequence

from relaax.machine_code.declarations import ArgumentType, ArrayType, Declaration, NumberType

_TYPE_NUMBERS = {
    "bool": (0,),
    "int8": (1,),
    "uint8": (2,),
    "int16": (3,),
    "uint16": (4,),
    "int32": (5,),
    "uint32": (6,),
    "int64": (7, 9),
    "uint64": (8, 10),
    "float32": (11,),
    "float64": (12,),
}
"""Numbers of numpy's dtypes. A long and a long long both have 64 bits."""

_SIZES = {dtype: int("".join(filter(str.isdigit, dtype)) or 8) // 8 for dtype in _TYPE_NUMBERS}

_NUMBERS = {"float32": "float", "int64": "int64_t", "uint64": "uint64_t"}
"""The C types of numbers that are passed by value."""

_HEAD = r"""
#include <stdint.h>

typedef struct Object { intptr_t references; struct Type *type; } Object;
typedef struct Type Type;
typedef Object *(*Function)(Object *, Object *const *, intptr_t);
typedef struct { const char *name; Function function; int flags; const char *text; } Method;
typedef struct {
  Object head; void *init; intptr_t index; Object *copy;
  const char *name; const char *text; intptr_t size; Method *methods; void *slots, *traverse, *clear, *release;
} Module;
typedef struct { Object head; Type *scalar; char kind, code, order, flags; int number; } Dtype;
typedef struct {
  Object head; void *data; int axes; intptr_t *dimensions, *strides; Object *base; Dtype *dtype; int flags;
} Array;

extern Object *PyExc_TypeError, *PyExc_RuntimeError, _Py_NoneStruct;
extern Object *PyErr_Format(Object *, const char *, ...);
extern Object *PyErr_Occurred(void);
extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);
extern double PyFloat_AsDouble(Object *);
extern Object *PyImport_ImportModule(const char *);
extern Object *PyLong_FromLongLong(long long);
extern long long PyLong_AsLongLong(Object *);
extern unsigned long long PyLong_AsUnsignedLongLong(Object *);
extern Object *PyModule_Create2(Module *, int);
extern Object *PyNumber_Index(Object *);
extern Object *PyObject_GetAttrString(Object *, const char *);
extern Object *PyTuple_GetItem(Object *, intptr_t);
extern intptr_t PyTuple_Size(Object *);
extern int PyType_IsSubtype(Type *, Type *);
extern void Py_DecRef(Object *);
extern void Py_IncRef(Object *);

enum { FAST_CALL = 0x80, CONTIGUOUS = 0x1, ALIGNED = 0x100, WRITABLE = 0x400 };

static Type *array_type;

static Array *array_of(Object *object, int number, int same, int axes, int flags, const char *type,
                       const char *kernel) {
  Array *array = (Array *)object;
  if (object->type != array_type && !PyType_IsSubtype(object->type, array_type)) {
    PyErr_Format(PyExc_TypeError, "%s: %s is needed, which must be an array", kernel, type);
    return 0;
  }
  if ((array->dtype->number != number && array->dtype->number != same) || array->dtype->order == '>' ||
      array->axes != axes || (array->flags & flags) != flags) {
    PyErr_Format(PyExc_TypeError, "%s: %s is needed, not an array with dtype number %d, %d axes and flags 0x%x", kernel,
                 type, array->dtype->number, array->axes, array->flags);
    return 0;
  }
  return array;
}

static int64_t as_int64_t(Object *object) {
  Object *index = PyNumber_Index(object);
  if (!index) return -1;
  int64_t value = PyLong_AsLongLong(index);
  Py_DecRef(index);
  return value;
}

static uint64_t as_uint64_t(Object *object) {
  Object *index = PyNumber_Index(object);
  if (!index) return -1;
  uint64_t value = PyLong_AsUnsignedLongLong(index);
  Py_DecRef(index);
  return value;
}

static float as_float(Object *object) { return (float)PyFloat_AsDouble(object); }

static Object *with_result(int status, Object *result, const char *kernel) {
  if (status == 0 || status == -2) return result;
  if (result) Py_DecRef(result);
  return PyErr_Format(PyExc_RuntimeError, "%s: the kernel failed with status %d", kernel, status);
}

static Object *none(void) {
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

// Kernels call it for memory that numba has allocated and that has no further reference. Arrays of Python are not such.
void NRT_MemInfo_call_dtor(void *memory) { (void)memory; }

static int has_count(intptr_t count, intptr_t needed, const char *kernel) {
  if (count == needed) return 1;
  PyErr_Format(PyExc_TypeError, "%s: %zd arguments are needed, not %zd", kernel, needed, count);
  return 0;
}
"""

_TAIL = r"""
static Module module = {.head = {1, 0}, .name = MODULE, .text = MARK, .size = -1, .methods = methods};

__attribute__((visibility("default"))) Object *INITIALIZE(void) {
  Object *numpy = PyImport_ImportModule("numpy");
  if (!numpy) return 0;
  array_type = (Type *)PyObject_GetAttrString(numpy, "ndarray");
  Py_DecRef(numpy);
  return array_type ? PyModule_Create2(&module, 3) : 0;
}
"""


def code_of(kernels: Sequence[tuple[str, str, Declaration]], module: str, mark: str) -> str:
    """Return the C code of a module with these kernels, and with `mark` as its docstring.

    Each has the name by which Python finds it, the symbol of numba's function, and its declaration.
    """
    entries = [_entry(symbol, declaration) for _, symbol, declaration in kernels]
    methods = [f'  {{"{name}", enter_{symbol}, FAST_CALL, 0}},' for name, symbol, _ in kernels]
    table = ["static Method methods[] = {", *methods, "  {0, 0, 0, 0},", "};"]
    tail = _TAIL.replace("MODULE", f'"{module}"').replace("MARK", f'"{mark}"').replace("INITIALIZE", f"PyInit_{module}")
    return "\n".join((_HEAD, *entries, *table, tail))


def parameters_of(declaration: Declaration) -> list[str]:
    """Return the C types of the parameters of numba's function.

    The first two are the addresses of the result and of an exception. An array is passed as the object that owns its
    memory, its parent, its number of elements, their size, its data, its shape and its strides.
    """
    types = ["void *", "void *"]
    for argument in declaration.arguments:
        if isinstance(argument, ArrayType):
            types += ["void *", "void *", "int64_t", "int64_t", "void *", *["int64_t"] * (2 * argument.dimensions)]
        elif isinstance(argument, NumberType):
            types.append(_NUMBERS[argument.dtype])
        else:
            types += [_NUMBERS[argument.dtype]] * argument.length
    return types


def _entry(symbol: str, declaration: Declaration) -> str:
    """Return the declaration of numba's function, and the function that Python calls."""
    name = f'"{declaration.function.__name__}"'
    count = len(declaration.arguments)
    passed = ["&result", "&error"]
    lines = [f"  if (!has_count(count, {count}, {name})) return 0;", "  int64_t result = 0;", "  void *error = 0;"]
    for index, argument in enumerate(declaration.arguments):
        read, values = _reading(index, argument, name)
        lines += read
        passed += values
    result = "none()" if declaration.returns is None else "PyLong_FromLongLong(result)"
    lines += [
        "  void *thread = PyEval_SaveThread();",
        f"  int status = {symbol}({', '.join(passed)});",
        "  PyEval_RestoreThread(thread);",
        f"  return with_result(status, {result}, {name});",
    ]
    return "\n".join(
        (
            f"\nextern int {symbol}({', '.join(parameters_of(declaration))});",
            f"static Object *enter_{symbol}(Object *self, Object *const *arguments, intptr_t count) {{",
            *lines,
            "}",
        )
    )


def _reading(index: int, argument: ArgumentType, name: str) -> tuple[list[str], list[str]]:
    """Return the lines that read an argument, and the values that are passed to the kernel."""
    given = f"arguments[{index}]"
    if isinstance(argument, ArrayType):
        array = f"array{index}"
        numbers = _TYPE_NUMBERS[argument.dtype]
        flags = "ALIGNED" + " | CONTIGUOUS" * argument.contiguous + " | WRITABLE" * argument.writable
        facts = f'{numbers[0]}, {numbers[-1]}, {argument.dimensions}, {flags}, "{argument}"'
        shape = [f"{array}->dimensions[{axis}]" for axis in range(argument.dimensions)]
        strides = [f"{array}->strides[{axis}]" for axis in range(argument.dimensions)]
        lines = [f"  Array *{array} = array_of({given}, {facts}, {name});", f"  if (!{array}) return 0;"]
        size = _SIZES[argument.dtype]
        return lines, ["0", "0", " * ".join(shape), str(size), f"{array}->data", *shape, *strides]
    kind = _NUMBERS[argument.dtype]
    if isinstance(argument, NumberType):
        lines = [
            f"  {kind} number{index} = as_{kind}({given});",
            f"  if (number{index} == ({kind})-1 && PyErr_Occurred()) return 0;",
        ]
        return lines, [f"number{index}"]
    length = argument.length
    lines = [
        f"  if (PyTuple_Size({given}) != {length})",
        f'    return PyErr_Format(PyExc_TypeError, "%s: a tuple of {length} numbers is needed", {name});',
        f"  {kind} numbers{index}[{length}];",
        f"  for (int i = 0; i < {length}; i++) {{",
        f"    numbers{index}[i] = as_{kind}(PyTuple_GetItem({given}, i));",
        f"    if (numbers{index}[i] == ({kind})-1 && PyErr_Occurred()) return 0;",
        "  }",
    ]
    return lines, [f"numbers{index}[{i}]" for i in range(length)]
