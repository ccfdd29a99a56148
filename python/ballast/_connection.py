# SPDX-License-Identifier: Apache-2.0
"""The membership of this process in a job, as one of its workers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import itertools
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

from . import _arguments, _arrays, _library
from ._exchange import Exchange
from ._futures import Completer, Future
from ._leases import Batches
from ._log import Log
from .errors import Error, InvalidArgument, ValuesSet, closed_error
from .optimizers import Optimizer, optimizer_text
from .tables import Table

# Limit on waits for which the caller names none. The servers' own limits are shorter.
_PATIENCE = 600.0
# Limit on the wait for callbacks of futures when a connection is closed.
_CALLBACK_PATIENCE = 60.0
# The connections of this process, in the order of their opening.
opened: "weakref.WeakValueDictionary[int, Connection]" = weakref.WeakValueDictionary()
_numbers = itertools.count()


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
        given = _library.Options(size=ctypes.sizeof(_library.Options), job=_arguments.text("job", job),
                                 coordinator=_arguments.text("coordinator", coordinator) if coordinator else None,
                                 **options)
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
        # Number of times that the arrays of the last pulls received values that nobody asked for, and the operations of
        # the last skip_step().
        self._refreshes = 0
        self._skips: List[Future] = []
        self._position = -1.0
        # Length of the batch of a lease; 0: none.
        self._batch_examples = 0
        self._batches: Optional[Batches] = None
        self._learning_rate = 0.0
        self._waited = 0.0
        self._reported = time.monotonic()
        self._reported_step = self._first_step
        self._log = Log()
        opened[next(_numbers)] = self

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
        for name, array in _arguments.mapping("tensors", tensors).items():
            if initializer is None:
                views[name] = _arrays.memory(f'first values of "{name}"', array)
                shapes[name] = views[name].shape
            else:
                shapes[name] = _arguments.shape(name, getattr(array, "shape", array))
        specs = [self._spec(name, shapes[name], _arguments.optimizer_of(optimizer, name), initializer, seed)
                 for name in tensors]
        ids = (ctypes.c_uint32 * len(specs))()
        _library.check(self._lib.ballast_declare(worker, _arguments.texts(specs), len(specs), ids))
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
        return (f"name: {_arguments.quoted('name of a tensor', name)} {sizes} "
                f"initializer {{ {initializer or 'provided {}'} }} optimizer {{ {optimizer} }} seed: {_arguments.number('seed', seed, 0, 2**64 - 1)}")

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
        if _arguments.mapping("gradients", gradients).keys() != _arguments.mapping("into", into).keys():
            raise InvalidArgument(f"push-pull: got gradients of {_arguments.names(gradients)} and memory for "
                                  f"{_arguments.names(into)}, want the same tensors")
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
        dim = _arguments.number(f'dim of table "{name}"', dim, 1, _arguments.MOST)
        parts = [f"name: {_arguments.quoted('name of a table', name)} dim: {dim} "
                 f"optimizer {{ {optimizer_text(optimizer)} }}",
                 f"initializer {{ {initializer} }} seed: {_arguments.number('seed', seed, 0, 2**64 - 1)}"]
        if min_uses:
            parts.append(f"admission {{ min_uses: {_arguments.number('min_uses', min_uses, 0, _arguments.MOST)} }}")
        limits = {"ttl_steps": ttl_steps, "ttl_seconds": ttl_seconds, "max_rows": max_rows}
        if any(limits.values()):
            fields = " ".join(f"{field}: {_arguments.number(field, value, 0, 2**64 - 1)}"
                              for field, value in limits.items() if value)
            parts.append(f"eviction {{ {fields} }}")
        if policy is not None:
            parts.append(f"policy {{ {policy} }}")
        number = (ctypes.c_uint32 * 1)()
        _library.check(self._lib.ballast_declare_tables(worker, _arguments.texts([" ".join(parts)]), 1, number))
        self._tables[name] = Table(self, name, number[0], dim)
        return self._tables[name]

    def push_rows(self, gradients: Mapping[str, Sequence[Any]], *, examples: int = 1, last: bool = True) -> Future:
        """Sends gradients of rows, by table: (ids of shape [n], gradients of shape [n, dim]), each the mean over
        `examples` examples. `last` ends this worker's step of rows, at all tables."""
        self._use()
        rows = (_library.Rows * max(len(_arguments.mapping("gradients", gradients)), 1))()
        owners: List[Any] = []
        for row, (name, pair) in zip(rows, gradients.items()):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise InvalidArgument(f'gradients of table "{name}": got {type(pair).__name__}, want a tuple of ids and '
                                      "gradients")
            owners.append(self._find_table(name)._fill(row, pair[0], pair[1], "gradients of", writable=False))
        examples = _arguments.number("examples", examples, 0, _arguments.MOST)
        step = _library.Step(self._row_steps, examples, self._position)
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
            raise InvalidArgument(f'table "{name}" was not declared, want one of {_arguments.names(self._tables)}')
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
        # Two operations must not write to the same memory, and servers keep one step of a worker ahead of the others.
        for exchange in list(self._exchanges):
            exchange.finish()
        for future in self._skips:
            self._wait(future, None)
        self._skips = []
        pulled = [tensor for tensor in self._tensors.values() if tensor.into is not None]
        groups: Dict[int, List[_Tensor]] = {}
        for tensor in pulled:
            groups.setdefault(tensor.steps, []).append(tensor)
        for tensors in groups.values():
            self._skips.append(self.push_pull({tensor.name: None for tensor in tensors},
                                              {tensor.name: tensor.into.owner for tensor in tensors}, examples=0))
            self._refreshes += 1
        for tensor in self._tensors.values():
            if tensor.into is None:
                self._skips.append(self.push({tensor.name: None}, examples=0))
        if self._tables:
            self._skips.append(self.push_rows({}, examples=0))

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
        self._refreshes += 1
        self._behind = False

    # --- progress ---

    def log(self, loss: Any = None, *, examples: Optional[int] = None, epoch: Optional[int] = None,
            epochs_done: Optional[int] = None, test_loss: Any = None, test_accuracy: Any = None) -> None:
        """Adds to the job's metrics, which `ballast status`, the progress of `ballast run` and its report show.

        loss: mean loss of `examples` examples of `epoch`, which counts from 0. Default of both: those of the current
            batch of leases(), otherwise 1 and 0.
        test_loss, test_accuracy: an evaluation after `epochs_done` epochs; default: the epoch of the current batch and
            those before it.

        Call it as often as you like: it sends a message once a second, and at the end of each lease and of the
        connection.
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
            close_quietly(self, None)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if error is None:
            self.close()
        else:
            self.close(failure_of(error))

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
        for name in _arguments.mapping("tensors", names):
            if name not in self._tensors:
                raise InvalidArgument(f'tensor "{name}" was not declared, want one of {_arguments.names(self._tensors)}')
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
        examples = _arguments.number("examples", examples, 0, _arguments.MOST)
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


def _name(call: str, tensors: List[_Tensor], step: int) -> str:
    count = f'"{tensors[0].name}"' if len(tensors) == 1 else f"{len(tensors)} tensors"
    return f"{call} {count} at step {step}"


def failure_of(error: BaseException) -> Optional[str]:
    """Returns the reason with which a worker that ends by an exception leaves; None if it was only told to stop."""
    told = isinstance(error, (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError))
    if told or isinstance(error, SystemExit) and not error.code:
        return None
    return f"{type(error).__name__}: {error}"


def close_quietly(connection: Connection, failure: Optional[str]) -> None:
    try:
        connection.close(failure)
    except Exception as failed:  # Nobody can handle it.
        if sys is not None and sys.stderr is not None:
            print(f"ballast: could not leave the job: {failed}", file=sys.stderr)
