# SPDX-License-Identifier: Apache-2.0
"""The membership of this process in a job, as one of its workers."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import ctypes
import operator
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

from . import _arrays, _library
from ._exchange import Exchange
from ._futures import Completer, Future
from ._leases import Batches
from ._log import Log
from ._stop import ends_when_lost
from .errors import Error, InvalidArgument, ValuesSet, closed_error
from .optimizers import Optimizer, optimizer_text
from .tables import Table

# Limit on waits for which the caller names none. The servers' own limits are shorter.
_PATIENCE = 600.0
# Limit on the wait for callbacks of futures when a connection is closed.
_CALLBACK_PATIENCE = 60.0
# The largest uint32.
_MOST = 2**32 - 1

_DURABILITIES = ("none", "checkpoint", "wal", "wal_sync", "standby")


def _quoted(what: str, text: Any) -> str:
    """Returns a string of protobuf's text format, with all but ASCII's printable characters as octal numbers."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what}: got {text!r}, want a str")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what}: got {text!r}, want text that UTF-8 can encode") from None
    return '"' + "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\\\' else f"\\{byte:03o}" for byte in encoded) + '"'


def _number(what: str, number: Any, least: int, most: int) -> int:
    """Returns a number as an int. InvalidArgument, which calls it `what`, unless it is one in that range."""
    try:
        value = operator.index(number)
    except TypeError:
        value = least - 1
    if not least <= value <= most:
        raise InvalidArgument(f"{what}: got {number!r}, want an integer from {least} to {most}")
    return value


def _seconds(what: str, seconds: Any) -> float:
    """Returns a time as a float. InvalidArgument unless it is a number above 0."""
    try:
        value = float(seconds)
    except (TypeError, ValueError):
        value = 0.0
    if not value > 0:
        raise InvalidArgument(f"{what}: got {seconds!r}, want a number of seconds above 0")
    return value


def _patience(timeout: Optional[float]) -> float:
    return _PATIENCE if timeout is None else timeout


class _Tensor:
    """A declared tensor: its id and shape, and the number of this worker's pushes of it."""

    def __init__(self, name: str, number: int, shape: tuple, steps: int) -> None:
        self.name = name
        self.id = number
        self.shape = shape
        self.steps = steps
        # The memory of its last pull.
        self.into: Optional[_arrays.Memory] = None


class Connection:
    """A worker of a job: `rank` of `workers`. Made by connect(); leaves the job at the end of a `with` block, or with
    close(). An exception in the block ends the job, for that reason.

    Arrays are NumPy's, PyTorch's on the CPU, or any with DLPack: float32, contiguous, and writable if they receive
    values. They are used in place, and belong to the call until its future has ended. InvalidArgument names a tensor,
    what was got and what is wanted. Any thread may use a connection, except that one at a time uses leases().
    """

    def __init__(self, coordinator: Optional[str], job: str, options: Dict[str, Any]) -> None:
        lib = _library.library()
        given = _library.Options(size=ctypes.sizeof(_library.Options), job=_text("job", job),
                                 coordinator=_text("coordinator", coordinator) if coordinator else None, **options)
        worker = _library.Worker()
        worker.process, worker.free = os.getpid(), lib.ballast_free

        def leave(error: Optional[int]) -> None:
            _library.take_error(error)
            if worker.value:
                _library.take_error(lib.ballast_leave(worker, None))

        _library.check(_interruptible(lambda: lib.ballast_join(ctypes.byref(given), ctypes.byref(worker)), leave))
        membership = _library.Membership()
        lib.ballast_get_membership(worker, ctypes.byref(membership))
        self.rank: int = membership.rank
        self.workers: int = membership.workers
        self.servers: int = membership.servers
        self.returns = bool(membership.returns)
        """Whether an earlier process of this rank has trained. The first pull of all tensors then catches up."""
        self._first_step: int = membership.first_step
        self._behind = self.returns
        self._lib = lib
        self._worker: Optional[_library.Worker] = worker
        self._process = worker.process
        self._closing = threading.Lock()
        self._completer = Completer(worker)
        # Those that are in flight.
        self._exchanges: Set[Exchange] = set()
        self._tensors: Dict[str, _Tensor] = {}
        self._tables: Dict[str, Table] = {}
        self._row_steps = self._first_step
        self._position = -1.0
        # Length of the batch of a lease; 0: none.
        self._batch_examples = 0
        self._batches: Optional[Batches] = None
        self._learning_rate = 0.0
        self._waited = 0.0
        self._reported = time.monotonic()
        self._reported_step = self._first_step
        self._log = Log()
        _open.add(self)

    # --- tensors ---

    def declare(self, tensors: Mapping[str, Any], optimizer: Union[Optimizer, str, Mapping[str, Union[Optimizer, str]]],
                *, initializer: Optional[str] = None, seed: int = 0, timeout: Optional[float] = None) -> None:
        """Creates tensors on the servers, which all workers declare alike and in the same order.

        tensors: by name, arrays, whose values on worker 0 are the first ones, unless the job has some; or, with an
            `initializer` such as "normal { stddev: 0.01 }", shapes.
        optimizer: one for all, or one for each name.

        TensorDiffers if a tensor was declared with another shape or optimizer.
        """
        worker = self._use()
        views: Dict[str, _arrays.Memory] = {}
        shapes: Dict[str, tuple] = {}
        for name, array in _mapping("tensors", tensors).items():
            if initializer is None:
                views[name] = _arrays.memory(f'first values of "{name}"', array)
                shapes[name] = views[name].shape
            else:
                shapes[name] = _shape(name, getattr(array, "shape", array))
        specs = [self._spec(name, shapes[name], _optimizer_of(optimizer, name), initializer, seed) for name in tensors]
        ids = (ctypes.c_uint32 * len(specs))()
        _library.check(self._lib.ballast_declare(worker, _texts(specs), len(specs), ids))
        for name, number in zip(tensors, ids):
            known = self._tensors.get(name)
            steps = known.steps if known is not None else self._first_step
            self._tensors[name] = _Tensor(name, number, shapes[name], steps)
        if views and self.rank == 0:
            self._set_values(views, timeout)

    @staticmethod
    def _spec(name: str, shape: tuple, optimizer: str, initializer: Optional[str], seed: int) -> str:
        # A tensor has at least one dimension.
        sizes = " ".join(f"shape: {size}" for size in shape or (1,))
        return (f"name: {_quoted('name of a tensor', name)} {sizes} initializer {{ {initializer or 'provided {}'} }} "
                f"optimizer {{ {optimizer} }} seed: {_number('seed', seed, 0, 2**64 - 1)}")

    def _set_values(self, views: Dict[str, _arrays.Memory], timeout: Optional[float]) -> None:
        for name, view in views.items():
            array = self._array([self._tensors[name]], [view])
            try:
                self._begin(f'setting of the first values of "{name}"', self._lib.ballast_set_values, (array, 1),
                            view).result(_patience(timeout))
            except ValuesSet:
                # The job has been trained before.
                pass

    def pull(self, into: Mapping[str, Any], *, timeout: Optional[float] = None) -> None:
        """Reads values into arrays of the tensors' shapes, by name: under policy sync those that include the update of
        this worker's last push. Waits."""
        if self._behind:
            self._catch_up(into)
        else:
            self._wait(self.pull_async(into), timeout)

    def pull_async(self, into: Mapping[str, Any]) -> Future:
        """Begins to read values; as pull. All tensors of a call have been pushed equally often."""
        self._use()
        tensors = self._find(into)
        views = self._views("memory for", tensors, into, writable=True)
        step = self._common_step(tensors)
        array = self._array(tensors, views)
        return self._begin(_name("pull of", tensors, step), self._lib.ballast_pull, (step, array, len(views)), views)

    def push(self, gradients: Mapping[str, Any], *, examples: int = 1) -> Future:
        """Sends gradients, by name, each the mean over `examples` examples. Ends this worker's step at these tensors;
        with examples=0 it ends without a contribution, and gradients are not used."""
        self._use()
        tensors = self._find(gradients)
        step = self._step(tensors, examples)
        views = self._views("gradient of", tensors, gradients) if step.examples > 0 else []
        array = self._array(tensors, views)
        future = self._begin(_name("push of", tensors, step.step), self._lib.ballast_push,
                             (ctypes.byref(step), array, len(tensors)), views)
        self._end_step(tensors, future)
        return future

    def push_pull(self, gradients: Mapping[str, Any], into: Mapping[str, Any], *, examples: int = 1) -> Future:
        """Sends gradients and reads the values after their update in one round trip: push, then pull. Both name the
        same tensors."""
        self._use()
        if _mapping("gradients", gradients).keys() != _mapping("into", into).keys():
            raise InvalidArgument(f"push-pull: got gradients of {_names(gradients)} and memory for {_names(into)}, want "
                                  "the same tensors")
        tensors = self._find(into)
        step = self._step(tensors, examples)
        pushed = self._views("gradient of", tensors, gradients) if step.examples > 0 else []
        pulled = self._views("memory for", tensors, into, writable=True)
        sent, received = self._array(tensors, pushed), self._array(tensors, pulled)
        future = self._begin(_name("push-pull of", tensors, step.step), self._lib.ballast_push_pull,
                             (ctypes.byref(step), sent, received, len(tensors)), (pushed, pulled))
        self._end_step(tensors, future)
        return future

    @property
    def step(self) -> int:
        """The number of steps that this worker has finished: the pushes of the tensor that was pushed most often."""
        return max([self._row_steps] + [tensor.steps for tensor in self._tensors.values()])

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits for all operations that have begun; raises the first one's exception."""
        for exchange in list(self._exchanges):
            exchange.finish()
        began = time.monotonic()
        self._completer.wait(_patience(timeout))
        self._waited += time.monotonic() - began

    # --- tables ---

    def table(self, name: str, dim: int, optimizer: Union[Optimizer, str], *,
              initializer: str = "normal { stddev: 0.01 }", seed: int = 0, min_uses: int = 0, ttl_steps: int = 0,
              ttl_seconds: int = 0, max_rows: int = 0, policy: Optional[str] = None) -> Table:
        """Creates a table of rows of `dim` weights, which all workers declare alike, and returns it.

        min_uses: uses of an id before it gets a row. ttl_steps, ttl_seconds, max_rows: when rows are evicted; 0: never.
        policy: text of a ConsistencyPolicy, "async {}"; None: the job's.
        """
        worker = self._use()
        dim = _number(f'dim of table "{name}"', dim, 1, _MOST)
        parts = [f"name: {_quoted('name of a table', name)} dim: {dim} optimizer {{ {optimizer_text(optimizer)} }}",
                 f"initializer {{ {initializer} }} seed: {_number('seed', seed, 0, 2**64 - 1)}"]
        if min_uses:
            parts.append(f"admission {{ min_uses: {_number('min_uses', min_uses, 0, _MOST)} }}")
        limits = {"ttl_steps": ttl_steps, "ttl_seconds": ttl_seconds, "max_rows": max_rows}
        if any(limits.values()):
            fields = " ".join(f"{field}: {_number(field, value, 0, 2**64 - 1)}" for field, value in limits.items() if value)
            parts.append(f"eviction {{ {fields} }}")
        if policy is not None:
            parts.append(f"policy {{ {policy} }}")
        number = (ctypes.c_uint32 * 1)()
        _library.check(self._lib.ballast_declare_tables(worker, _texts([" ".join(parts)]), 1, number))
        self._tables[name] = Table(self, name, number[0], dim)
        return self._tables[name]

    def push_rows(self, gradients: Mapping[str, Sequence[Any]], *, examples: int = 1, last: bool = True) -> Future:
        """Sends gradients of rows, by table: (ids of shape [n], gradients of shape [n, dim]), each the mean over
        `examples` examples. `last` ends this worker's step of rows, at all tables."""
        self._use()
        rows = (_library.Rows * max(len(_mapping("gradients", gradients)), 1))()
        owners: List[Any] = []
        for row, (name, pair) in zip(rows, gradients.items()):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise InvalidArgument(f'gradients of table "{name}": got {type(pair).__name__}, want a tuple of ids and '
                                      "gradients")
            owners.append(self._find_table(name)._fill(row, pair[0], pair[1], "gradients of", writable=False))
        step = _library.Step(self._row_steps, _number("examples", examples, 0, _MOST), self._position)
        future = self._begin(f"push of rows of {len(gradients)} tables at step {step.step}",
                             self._lib.ballast_push_rows, (ctypes.byref(step), rows, len(gradients), int(last)), owners)
        if last:
            self._row_steps += 1
        return future

    def push_collected_rows(self, *, examples: int = 1) -> Optional[Future]:
        """Sends the gradients of rows that ballast.torch.EmbeddingBag has collected since the last call, and ends the
        step of rows. DistributedOptimizer.step() does so. None if no EmbeddingBag has been made."""
        if not any(table._has_bag for table in self._tables.values()):
            return None
        gradients = {name: table._take_collected() for name, table in self._tables.items() if table._collected}
        return self.push_rows(gradients, examples=examples)

    def _pull_rows(self, table: Table, ids: Any, values: Any) -> Future:
        self._use()
        rows = (_library.Rows * 1)()
        owners = table._fill(rows[0], ids, values, "memory for rows of", writable=True)
        step = self._row_steps
        return self._begin(f'pull of rows of table "{table.name}" at step {step}', self._lib.ballast_pull_rows,
                           (step, rows, 1), owners)

    def _find_table(self, name: str) -> Table:
        table = self._tables.get(name)
        if table is None:
            raise InvalidArgument(f'table "{name}" was not declared, want one of {_names(self._tables)}')
        return table

    # --- data ---

    def leases(self, loader: Any = None, *, timeout: Optional[float] = None) -> Iterator[Any]:
        """Yields the batches of this worker, until all epochs are done: each example of an epoch goes to one worker,
        and to another one if that is lost. connect() was given `examples`, `batch_size` and `epochs`.

        loader: a torch.utils.data.DataLoader, whose data set, collate function and processes make the batches; None:
            the batches are arrays of the examples' numbers, int64 of shape [n].
        timeout: limit on the wait for a lease. Without it, others may take as long as they like while the job runs.

        The batch is done once the next one is asked for: push its gradients before. Between batches, this worker may
        push steps without examples to all tensors, and pull into the arrays of their last pull.
        """
        self._use()
        if self._batches is None:
            raise InvalidArgument("leases: got a connection without examples, want connect(..., examples=N, "
                                  "batch_size=B, epochs=E)")
        return self._batches.run(self, loader, timeout)

    def skip_step(self) -> None:
        """Ends a step at all tensors and tables without contributing, and pulls into the arrays of the last pull."""
        self._use()
        # Two operations must not write to the same memory.
        for exchange in list(self._exchanges):
            exchange.finish()
        pulled = [tensor for tensor in self._tensors.values() if tensor.into is not None]
        groups: Dict[int, List[_Tensor]] = {}
        for tensor in pulled:
            groups.setdefault(tensor.steps, []).append(tensor)
        for tensors in groups.values():
            self.push_pull({tensor.name: None for tensor in tensors},
                           {tensor.name: tensor.into.owner for tensor in tensors}, examples=0)
        for tensor in self._tensors.values():
            if tensor.into is None:
                self.push({tensor.name: None}, examples=0)
        if self._tables:
            self.push_rows({}, examples=0)

    def _catch_up(self, into: Optional[Mapping[str, Any]] = None) -> None:
        """Reads the newest values of all tensors and reaches the others' step."""
        worker = self._use()
        tensors = list(self._tensors.values())
        if into is None:
            missing = [tensor.name for tensor in tensors if tensor.into is None]
            if missing:
                raise InvalidArgument(f"catching up with the other workers: got no memory for {missing}, want them to "
                                      "have been pulled before")
            into = {tensor.name: tensor.into.owner for tensor in tensors}
        missing = [tensor.name for tensor in tensors if tensor.name not in into]
        if missing:
            raise InvalidArgument(f"first pull of a worker that returns: got no memory for {missing}, want all tensors "
                                  "of the job in one call")
        self._find(into)
        views = self._views("memory for", tensors, into, writable=True)
        self.wait()
        step = ctypes.c_uint64()
        _library.check(self._lib.ballast_catch_up(worker, self._array(tensors, views), len(views), ctypes.byref(step)))
        for tensor in tensors:
            tensor.steps = step.value
        self._row_steps = step.value
        self._behind = False

    # --- progress ---

    def log(self, loss: Any = None, *, examples: Optional[int] = None, epoch: Optional[int] = None,
            epochs_done: Optional[int] = None, test_loss: Any = None, test_accuracy: Any = None) -> None:
        """Adds to the job's metrics, which `ballast status`, the progress of `ballast run` and its report show.

        loss: mean loss of `examples` examples of `epoch`, which counts from 0. Default of both: those of the current
            batch of leases(), otherwise 1 and 0.
        test_loss, test_accuracy: an evaluation after `epochs_done` epochs; default: the epoch of the current batch and
            those before it.

        Call it as often as you like: it sends a message once a second, and at the end of each lease and of the connection.
        """
        self._use()
        current = self._batches.epoch if self._batches is not None else 0
        if loss is not None:
            count = (self._batch_examples or 1) if examples is None else examples
            self._log.add(current if epoch is None else epoch, count, float(loss))
        elif examples is not None:
            raise InvalidArgument(f"log: got {examples} examples without a loss, want both")
        evaluation = None
        if test_loss is not None:
            accuracy = -1.0 if test_accuracy is None else float(test_accuracy)
            evaluation = (current + 1 if epochs_done is None else epochs_done, float(test_loss), accuracy)
        elif test_accuracy is not None:
            raise InvalidArgument("log: got test_accuracy without test_loss, want both")
        if evaluation is not None or self._log.is_due():
            self._report(evaluation)

    def _report(self, evaluation: Optional[Tuple[int, float, float]] = None) -> None:
        """Sends what was logged since the last message, one message for each epoch."""
        worker = self._use()
        parts = self._log.take() or ([(0, 0, 0.0)] if evaluation is not None else [])
        for number, (epoch, examples, loss_sum) in enumerate(parts):
            now, step = time.monotonic(), self.step
            progress = _library.Progress(
                step=step, epoch=epoch, learning_rate=self._learning_rate, examples=examples, loss_sum=loss_sum,
                steps=max(step - self._reported_step, 0), seconds=now - self._reported,
                wait_seconds=min(self._waited + self._completer.waited, now - self._reported))
            if evaluation is not None and number == len(parts) - 1:
                progress.evaluated = 1
                progress.epochs_done, progress.test_loss, progress.test_accuracy = evaluation
            _library.check(self._lib.ballast_report(worker, ctypes.byref(progress)))
            self._reported, self._reported_step, self._waited, self._completer.waited = now, step, 0.0, 0.0

    # --- the end ---

    def close(self, failure: Optional[str] = None) -> None:
        """Ends all operations and leaves the job; the other workers go on. With a failure, the job fails for that
        reason. Repeating it does nothing."""
        if self._worker is None or os.getpid() != self._process:
            return
        if failure is None:
            try:
                # A model's last step counts, and its values are kept.
                for exchange in list(self._exchanges):
                    exchange.settle()
                self._report()
            except Error:
                # The job has ended or failed; what follows says so.
                pass
        with self._closing:
            worker, self._worker = self._worker, None
        if worker is None:
            # Another thread closes it.
            return
        text = None if failure is None else failure.encode(errors="replace").replace(b"\0", b" ")
        error = _library.take_error(self._lib.ballast_leave(worker, text))
        # A callback that takes long must not keep this thread.
        self._completer.join(_CALLBACK_PATIENCE)
        if error is not None and failure is None:
            raise error

    def __del__(self) -> None:
        # Without __init__ there is none. It may be the thread that completes futures which drops the connection.
        if getattr(self, "_worker", None) is not None:
            _close_quietly(self, None)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if error is None:
            self.close()
        else:
            self.close(_failure(error))

    # --- parts ---

    def _use(self) -> _library.Worker:
        """Returns the library's worker, if this process may use it."""
        self._completer.check_process()
        worker = self._worker
        if worker is None:
            raise closed_error()
        self._completer.raise_ignored()
        return worker

    def _begin(self, what: str, function: Any, arguments: Tuple[Any, ...], owners: Any) -> Future:
        return self._completer.begin(what, function, arguments, owners)

    def _wait(self, future: Future, timeout: Optional[float]) -> None:
        began = time.monotonic()
        self._completer.await_one(future, _patience(timeout))
        self._waited += time.monotonic() - began

    def _find(self, names: Mapping[str, Any]) -> List[_Tensor]:
        for name in _mapping("tensors", names):
            if name not in self._tensors:
                raise InvalidArgument(f'tensor "{name}" was not declared, want one of {_names(self._tensors)}')
        return [self._tensors[name] for name in names]

    @staticmethod
    def _views(what: str, tensors: List[_Tensor], arrays: Mapping[str, Any], writable: bool = False
               ) -> List[_arrays.Memory]:
        views = [_arrays.memory(f'{what} "{tensor.name}"', arrays[tensor.name], writable=writable, shape=tensor.shape)
                 for tensor in tensors]
        if writable:
            for tensor, view in zip(tensors, views):
                tensor.into = view
        return views

    @staticmethod
    def _array(tensors: List[_Tensor], views: List[_arrays.Memory]) -> Any:
        array = (_library.Tensor * max(len(tensors), 1))()
        for i, tensor in enumerate(tensors):
            array[i].id = tensor.id
            if views:
                array[i].data, array[i].elements = views[i].address, views[i].elements
        return array

    @staticmethod
    def _common_step(tensors: List[_Tensor]) -> int:
        steps = {tensor.steps for tensor in tensors}
        if len(steps) > 1:
            counts = ", ".join(f'"{tensor.name}" {tensor.steps}' for tensor in tensors)
            raise InvalidArgument(f"tensors of one call: got ones that were pushed unequally often ({counts}), want a "
                                  "call for each number")
        return steps.pop() if steps else 0

    def _step(self, tensors: List[_Tensor], examples: int) -> _library.Step:
        examples = _number("examples", examples, 0, _MOST)
        if self._behind:
            raise InvalidArgument("push of a worker that returns: got none pulled, want a pull of all tensors first")
        return _library.Step(self._common_step(tensors), examples, self._position)

    def _end_step(self, tensors: List[_Tensor], future: Future) -> None:
        for tensor in tensors:
            tensor.steps += 1
        future.add_done_callback(self._note_rate)

    def _note_rate(self, future: Future) -> None:
        # Not by the future's own methods: the caller has not asked.
        if concurrent.futures.Future.exception(future) is None:
            self._learning_rate = concurrent.futures.Future.result(future).learning_rate or self._learning_rate


def _interruptible(call: Callable[[], Any], undo: Callable[[Any], None]) -> Any:
    """Returns the result of a call of the library that may take minutes, in a thread of its own, so that Ctrl-C ends
    the wait. Then `undo` is called with the result once there is one."""
    lock = threading.Lock()
    results: List[Any] = []
    interrupted: List[bool] = []

    def run() -> None:
        result = call()
        with lock:
            results.append(result)
            if not interrupted:
                return
        undo(result)

    thread = threading.Thread(target=run, name="ballast", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        with lock:
            interrupted.append(True)
            ended = list(results)
        for result in ended:
            undo(result)
        raise
    return results[0]


def _mapping(what: str, arrays: Any) -> Mapping[str, Any]:
    if not isinstance(arrays, Mapping):
        raise InvalidArgument(f"{what}: got {type(arrays).__name__}, want a dict by name")
    return arrays


def _names(mapping: Mapping[str, Any]) -> List[str]:
    return sorted(map(str, mapping))


def _shape(name: str, sizes: Any) -> Tuple[int, ...]:
    try:
        return tuple(_number(f'shape of "{name}"', size, 0, 2**63 - 1) for size in sizes)
    except TypeError:
        raise InvalidArgument(f'shape of "{name}": got {sizes!r}, want a tuple of integers') from None


def _name(call: str, tensors: List[_Tensor], step: int) -> str:
    count = f'"{tensors[0].name}"' if len(tensors) == 1 else f"{len(tensors)} tensors"
    return f"{call} {count} at step {step}"


def _text(what: str, text: Any) -> bytes:
    """Returns text as the library takes it."""
    if not isinstance(text, (str, os.PathLike)):
        raise InvalidArgument(f"{what}: got {text!r}, want a str")
    encoded = os.fsencode(text)
    if b"\0" in encoded:
        raise InvalidArgument(f"{what}: got {text!r}, want text without the character 0")
    return encoded


def _texts(specs: List[str]) -> Any:
    return (ctypes.c_char_p * max(len(specs), 1))(*[_text("declaration", spec) for spec in specs])


def _optimizer_of(optimizer: Any, name: str) -> str:
    if isinstance(optimizer, Mapping):
        if name not in optimizer:
            raise InvalidArgument(f'optimizers: got none for "{name}", want one for each tensor')
        optimizer = optimizer[name]
    return optimizer_text(optimizer)


def _failure(error: BaseException) -> Optional[str]:
    """Returns the reason with which a worker that ends by an exception leaves; None if it was only told to stop."""
    if isinstance(error, (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)) or isinstance(error, SystemExit) and not error.code:
        return None
    return f"{type(error).__name__}: {error}"


def _close_quietly(connection: Connection, failure: Optional[str]) -> None:
    try:
        connection.close(failure)
    except Exception as failed:  # Nobody can handle it.
        if sys is not None and sys.stderr is not None:
            print(f"ballast: could not leave the job: {failed}", file=sys.stderr)


# Those that are open or were.
_open: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _close_all() -> None:
    # An interactive session goes on after an exception.
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    error = None if interactive else getattr(sys, "last_value", None)
    for connection in list(_open):
        _close_quietly(connection, None if error is None else _failure(error))


atexit.register(_close_all)


def connect(coordinator: Optional[str] = None, job: Optional[str] = None, *, policy: str = "sync {}", rank: Optional[int] = None,
            examples: int = 0, batch_size: int = 0, epochs: int = 0, seed: int = 0, durability: str = "none",
            codec: Optional[str] = None, wait_seconds: int = 60, gather_timeout: Optional[float] = None,
            tls_ca: Optional[str] = None, tls_cert: Optional[str] = None, tls_key: Optional[str] = None,
            token_file: Optional[str] = None) -> Connection:
    """Joins a job as one of its workers, and waits until all servers and workers have joined.

    Under `ballast run`, no argument is needed to find the servers, and its flags replace job, policy, codec and
    durability.

    coordinator: host:port of server 0; default: $BALLAST_COORDINATOR, or 127.0.0.1:7700.
    job: its name, of a-z, 0-9, _ and -; default: $BALLAST_JOB. All workers give the same job, policy, durability, codec and examples;
        JobDiffers otherwise.
    policy: text of a ConsistencyPolicy in tensor.proto: "sync {}", "async {}", "bounded { steps_ahead: 4 }".
    rank: of this worker; default: $BALLAST_RANK, or the lowest free one.
    examples, batch_size, epochs: the data that leases() shares out, in an order that depends on `seed`.
    durability: "none", "checkpoint", "wal", "wal_sync" or "standby", as the servers were started.
    codec: text of a Codec: "gradients: ENCODING_BF16".
    wait_seconds: limit on the servers' waits for other workers, 1 to 600.
    gather_timeout: seconds until all must have joined; Timeout then names those that are missing. Default:
        $BALLAST_GATHER_TIMEOUT, or 300.
    tls_ca, tls_cert, tls_key, token_file: paths; default: $BALLAST_TLS_CA and so on.
    """
    job = job or os.environ.get("BALLAST_JOB", "")
    if not job:
        raise InvalidArgument('job: got none, want a name: connect(job="mine"), or `ballast run`, which sets $BALLAST_JOB')
    if durability not in _DURABILITIES:
        raise InvalidArgument(f"durability: got {durability!r}, want one of {', '.join(_DURABILITIES)}")
    examples = _number("examples", examples, 0, 2**63 - 1)
    text = [f"name: {_quoted('job', job)} seed: {_number('seed', seed, 0, 2**64 - 1)} policy {{ {policy} }} "
            f"durability {{ mode: {durability.upper()} }}"]
    if codec:
        text.append(f"codec {{ {codec} }}")
    training = f"wait_seconds: {_number('wait_seconds', wait_seconds, 1, 600)}"
    if examples > 0:
        training += (f" epochs: {_number('epochs', epochs, 1, _MOST)} "
                     f"batch_size: {_number('batch_size', batch_size, 1, _MOST)}")
    text.append(f"training {{ {training} }}")
    files = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key, "token_file": token_file}
    options: Dict[str, Any] = {name: _text(name, path) for name, path in files.items() if path}
    options.update(rank_plus_1=0 if rank is None else _number("rank", rank, 0, _MOST - 1) + 1, examples=examples,
                   gather_seconds=0 if gather_timeout is None else _seconds("gather_timeout", gather_timeout))
    ends_when_lost()
    connection = Connection(coordinator, " ".join(text), options)
    if examples > 0:
        connection._batches = Batches(examples, batch_size, seed)
    _connections.append(weakref.ref(connection))
    return connection


# Those of this process, the newest last.
_connections: List[Any] = []


def log(loss: Any = None, **figures: Any) -> None:
    """Calls Connection.log() of this process's newest open connection; does nothing if there is none, so that a script
    also runs without Ballast."""
    for reference in reversed(_connections):
        connection = reference()
        if connection is not None and connection._worker is not None and connection._process == os.getpid():
            connection.log(loss, **figures)
            return
