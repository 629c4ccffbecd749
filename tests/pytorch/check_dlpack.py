#!/usr/bin/env python3
"""Exchanges tensors with NumPy and PyTorch by DLPack, in both directions, and checks that nothing is copied.

    check_dlpack.py LIBRARY

LIBRARY: the module compiled from tests/runtime/dlpack_module.cpp. Prints the libraries that were checked or are not
installed, or "skipped: ..." if neither is. Exits with status 1 at the first difference.
"""
import ctypes
import gc
import sys
import weakref

api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
FRESH, USED = b"dltensor", b"used_dltensor"  # a capsule does not copy its name


class Lockstep:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.last_error.restype = ctypes.c_char_p
        self.library.numbered.restype = ctypes.c_void_p

    def fail(self):
        sys.exit("FAILED: " + self.library.last_error().decode())

    def numbered(self, dtype, shape, transposed=False):
        """An object with __dlpack__: 0, 1, ... in this shape, with the last two dimensions swapped if `transposed`."""
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        pointer = self.library.numbered(dtype.encode(), sizes, len(shape), int(transposed))
        return Exported(pointer or self.fail())

    def take(self, array):
        """Adds 1 to the elements of `array` in place; returns their former sum. The array is held until drop()."""
        capsule = array.__dlpack__()
        total = ctypes.c_double()
        pointer = ctypes.c_void_p(api.PyCapsule_GetPointer(capsule, FRESH))
        if self.library.take(pointer, ctypes.byref(total)) != 0:
            self.fail()
        api.PyCapsule_SetName(capsule, USED)
        return total.value

    def drop(self):
        self.library.drop()


class Exported:
    def __init__(self, pointer):
        self.pointer = pointer

    def __dlpack__(self, **_):
        return api.PyCapsule_New(self.pointer, FRESH, None)

    def __dlpack_device__(self):
        return (1, 0)


def require(condition, what):
    if not condition:
        sys.exit("FAILED: " + what)


def check(name, lockstep, dtypes, from_dlpack, numbers, as_list):
    """`numbers(dtype, shape)`: an array of the library with 0, 1, ..."""
    for ours, theirs in dtypes.items():
        what = f"{name}, {ours}"
        most = 2 if ours == "bool" else 24
        for shape, transposed in (((most,), False), ((2, most // 2), False), ((2, most // 2), True), ((), False)):
            array = from_dlpack(lockstep.numbered(ours, shape, transposed))
            require(array.dtype == theirs, f"{what}: dtype {array.dtype}")
            expected = numbers(theirs, shape)
            expected = expected.T if transposed else expected
            require(tuple(array.shape) == tuple(expected.shape), f"{what}: shape {array.shape}")
            require(as_list(array) == as_list(expected), f"{what}: values {array}")
        for view in (lambda x: x, lambda x: x.T, lambda x: x[:, 1:], lambda x: x[:, ::3]):
            if ours == "bool":
                break  # has no sum
            array = view(numbers(theirs, (4, 6)))
            before = as_list(array)
            total = sum(sum(row) for row in before)
            require(lockstep.take(array) == total, f"{what}: sum")
            after = [[element + 1 for element in row] for row in before]
            require(as_list(array) == after, f"{what}: not written in place")
            alive = weakref.ref(array)
            del array
            gc.collect()
            lockstep.drop()
            gc.collect()
            require(alive() is None, f"{what}: the array was not released")
    print(f"{name}: {', '.join(dtypes)}")


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    lockstep = Lockstep(sys.argv[1])
    checked = False
    try:
        import numpy as np

        version = tuple(int(part) for part in np.__version__.split(".")[:2])
        dtypes = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i32": np.int32, "i64": np.int64,
                  "u8": np.uint8}
        if version >= (1, 25):  # earlier versions know no bool in DLPack
            dtypes["bool"] = np.bool_
        check("NumPy " + np.__version__, lockstep, {ours: np.dtype(theirs) for ours, theirs in dtypes.items()},
              np.from_dlpack, lambda dtype, shape: np.arange(int(np.prod(shape))).astype(dtype).reshape(shape),
              lambda array: array.tolist())
        checked = True
    except ImportError:
        print("NumPy is not installed")
    try:
        import torch

        dtypes = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
                  "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool}
        check("PyTorch " + torch.__version__, lockstep, dtypes, torch.from_dlpack,
              lambda dtype, shape: torch.arange(torch.Size(shape).numel()).to(dtype).reshape(shape),
              lambda array: array.tolist())
        checked = True
    except ImportError:
        print("PyTorch is not installed")
    if not checked:
        print("skipped: neither NumPy nor PyTorch is installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
