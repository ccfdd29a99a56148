# SPDX-License-Identifier: Apache-2.0
"""The memory of arrays of other libraries, without copies."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

from .errors import InvalidArgument


class Memory(NamedTuple):
    """An array's memory; `owner` keeps it alive."""

    address: int
    elements: int
    shape: Tuple[int, ...]
    owner: Any


def _of_interface(what: str, array: Any, typestr: str, dtype: str, writable: bool) -> Memory:
    """Reads NumPy's array interface, version 3."""
    interface = array.__array_interface__
    if interface.get("data") is None:
        raise InvalidArgument(f"{what}: got {type(array).__name__} without an address, want an array of {dtype}")
    if interface["typestr"] != typestr:
        raise InvalidArgument(f"{what}: got dtype {getattr(array, 'dtype', interface['typestr'])}, want {dtype}")
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    elements = _count(shape)
    if strides is not None and elements > 1 and not _is_contiguous(shape, strides, int(typestr[2:])):
        raise InvalidArgument(f"{what}: got strides {strides} for shape {shape}, want a contiguous array")
    address, read_only = interface["data"]
    if writable and read_only:
        raise InvalidArgument(f"{what}: got a read-only array, want a writable one")
    return Memory(address, elements, shape, array)


def _of_torch(what: str, tensor: Any, dtype: str) -> Memory:
    if str(tensor.dtype) != "torch." + dtype:
        raise InvalidArgument(f"{what}: got dtype {tensor.dtype}, want {dtype}")
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"{what}: got a tensor on {tensor.device}, want one in the host's memory")
    if str(tensor.layout) != "torch.strided":
        raise InvalidArgument(f"{what}: got layout {tensor.layout}, want a dense tensor")
    shape = tuple(tensor.shape)
    if not tensor.is_contiguous():
        raise InvalidArgument(f"{what}: got strides {tensor.stride()} for shape {shape}, want a contiguous tensor")
    if tensor.is_neg():
        raise InvalidArgument(f"{what}: got a tensor that is negated when it is read, want resolve_neg() of it")
    # Assigning tensor.data must not free the memory.
    return Memory(tensor.data_ptr(), tensor.numel(), shape, tensor.detach())


def _count(shape: Tuple[int, ...]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements


def _is_contiguous(shape: Tuple[int, ...], strides: Tuple[int, ...], size: int) -> bool:
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != size:
            return False
        size *= length
    return True


def memory(what: str, array: Any, *, typestr: str = "<f4", dtype: str = "float32", writable: bool = False,
           shape: Optional[Tuple[int, ...]] = None) -> Memory:
    """Returns the memory of a NumPy array, a PyTorch tensor on the CPU, or any object with NumPy's array interface or
    DLPack. InvalidArgument, which calls the array `what`, unless it is contiguous, of that dtype and shape, and
    writable if it is to be written."""
    if hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):
        got = _of_torch(what, array, dtype)
    elif hasattr(array, "__array_interface__"):
        got = _of_interface(what, array, typestr, dtype, writable)
    elif hasattr(array, "__dlpack__"):
        import numpy
        try:
            shared = numpy.from_dlpack(array)
        except (RuntimeError, TypeError, BufferError) as error:
            raise InvalidArgument(f"{what}: got an array that cannot be shared ({error}), want one in the host's memory"
                                  ) from None
        got = _of_interface(what, shared, typestr, dtype, writable)
    else:
        raise InvalidArgument(f"{what}: got {type(array).__name__}, want an array of {dtype}")
    if shape is not None and got.shape != shape:
        raise InvalidArgument(f"{what}: got shape {got.shape}, want {shape}")
    return got
