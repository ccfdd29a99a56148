#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input to the Python package, and to the C library, ends with an error that names it, and never hangs or crashes.

Usage: bad_input_test.py SERVER LIBRARY HEADER VERSION_HEADER
"""

import concurrent.futures
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = ["python", "tests/python"]

try:
    import numpy as np
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

SERVER, os.environ["BALLAST_LIBRARY"] = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
HEADER, VERSION_HEADER = sys.argv[3:5]

import ballast
from ballast import _library
from servers import Servers, output_of, run_python

WIDE = np.zeros((2, 6), np.float32)


def read_only():
    array = np.zeros((2, 3), np.float32)
    array.flags.writeable = False
    return array


class BadInputTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = Servers(SERVER)
        cls.addClassCleanup(cls.servers.__exit__)
        cls.ps = ballast.connect(cls.servers.address, job="test")
        cls.addClassCleanup(cls.ps.close)
        cls.ps.declare({"w": np.zeros((2, 3), np.float32), "scalar": np.zeros((), np.float32)}, ballast.SGD(1))
        cls.table = cls.ps.table("users", 2, ballast.SGD(1))

    def tearDown(self):
        # Still as good as before.
        ones, w = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
        self.ps.push_pull({"w": ones}, into={"w": w}).result(30)

    def refuses(self, message, call, kind=ballast.InvalidArgument):
        with self.subTest(message), self.assertRaisesRegex(kind, message):
            call()

    def test_arrays(self):
        ps, got = self.ps, 'gradient of "w": got '
        for dtype in (np.float64, np.float16, np.int32, np.int64, np.bool_, np.complex64):
            self.refuses(f"^{got}dtype {np.dtype(dtype)}, want float32$",
                         lambda: ps.push({"w": np.zeros((2, 3), dtype)}))
        self.refuses(got + "dtype >f4, want float32", lambda: ps.push({"w": np.zeros((2, 3), ">f4")}))
        self.refuses(got + r"strides \(24, 8\) for shape \(2, 3\), want a contiguous array",
                     lambda: ps.push({"w": WIDE[:, ::2]}))
        self.refuses(got + "strides .*, want a contiguous", lambda: ps.push({"w": np.zeros((2, 3), np.float32)[::-1]}))
        self.refuses(got + "strides .*, want a contiguous",
                     lambda: ps.push({"w": np.broadcast_to(np.float32(1), (2, 3))}))
        self.refuses(got + r"shape \(0,\), want \(2, 3\)", lambda: ps.push({"w": np.zeros(0, np.float32)}))
        self.refuses(got + r"shape \(\), want \(2, 3\)", lambda: ps.push({"w": np.float32(1)}))
        self.refuses(got + r"shape \(6,\), want \(2, 3\)", lambda: ps.push({"w": np.zeros(6, np.float32)}))
        for value, name in ((None, "NoneType"), (1.0, "float"), ([1.0], "list"), ("w", "str"), (b"1234", "bytes")):
            self.refuses(got + name + ", want an array of float32", lambda: ps.push({"w": value}))
        self.refuses('memory for "w": got a read-only array, want a writable one', lambda: ps.pull({"w": read_only()}))
        self.refuses('memory for "w": got dtype float64', lambda: ps.pull({"w": np.zeros((2, 3))}))
        self.refuses(r'memory for "scalar": got shape \(1,\), want \(\)',
                     lambda: ps.pull({"scalar": np.zeros(1, np.float32)}))
        self.refuses('first values of "x": got dtype float64', lambda: ps.declare({"x": np.zeros(3)}, ballast.SGD(1)))

    def test_tensors_of_torch(self):
        try:
            import torch
        except ImportError as error:
            self.skipTest(str(error))
        ps, got = self.ps, 'gradient of "w": got '
        for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64):
            self.refuses(got + f"dtype {dtype}, want float32", lambda: ps.push({"w": torch.zeros(2, 3, dtype=dtype)}))
        self.refuses(got + r"strides \(1, 2\) for shape \(2, 3\), want a contiguous tensor",
                     lambda: ps.push({"w": torch.zeros(3, 2).t()}))
        self.refuses(got + "a tensor on meta, want one in the host's memory",
                     lambda: ps.push({"w": torch.zeros(2, 3, device="meta")}))
        self.refuses(got + "layout torch.sparse_coo, want a dense tensor",
                     lambda: ps.push({"w": torch.zeros(2, 3).to_sparse()}))
        self.refuses(got + r"a tensor that is negated when it is read, want resolve_neg\(\) of it",
                     lambda: ps.push({"w": torch._neg_view(torch.zeros(2, 3))}))
        # The memory that an operation uses stays, whatever becomes of the tensor.
        gradient = torch.zeros(2, 3)
        future = ps.push({"w": gradient})
        gradient.data = torch.zeros(1)
        del gradient
        future.result(30)

    def test_names(self):
        ps, ones = self.ps, np.ones(3, np.float32)
        self.refuses(r"""^tensor "v" was not declared, want one of \[""", lambda: ps.push({"v": ones}))
        self.refuses("gradients: got list, want a dict", lambda: ps.push_pull([ones], into={}))
        self.refuses("tensors: got ndarray, want a dict", lambda: ps.pull(ones))
        self.refuses(r"push-pull: got gradients of \['w'\] and memory for \['scalar'\], want the same tensors",
                     lambda: ps.push_pull({"w": ones}, into={"scalar": ones}))
        self.refuses("name of a tensor: got 5, want a str", lambda: ps.declare({5: ones}, ballast.SGD(1)))
        self.refuses("name of a tensor: got .*, want text that UTF-8 can encode",
                     lambda: ps.declare({"\ud800": ones}, ballast.SGD(1)))
        # The servers refuse a name, or it works.
        for name in ('"', "a\nb", "\0", "ä", "x" * 100000, "", "a } name: \"b", "\\"):
            with self.subTest(name[:20]):
                try:
                    ps.declare({name: ones}, ballast.SGD(1))
                except ballast.InvalidArgument as error:
                    self.assertRegex(str(error), "name")
                    self.assertLess(len(str(error)), 2000)
                else:
                    got = np.zeros(3, np.float32)
                    ps.push({name: ones}).result(30)
                    ps.pull({name: got})
                    np.testing.assert_array_equal(got, np.zeros(3))
        # Nothing to do.
        ps.push({}).result(30)
        ps.pull({})
        ps.push_pull({}, into={}).result(30)
        ps.push_rows({}).result(30)

    def test_declarations(self):
        ps = self.ps
        for shape, message in (((-1,), r'shape of "x": got -1, want an integer from 0'), ((1.5,), "got 1.5"),
                               (3, r'shape of "x": got 3, want a tuple'), ((2**70,), "got 1180591620717411303424"),
                               ((0,), "dimension 0, want at least 1"), ((2**40,), "."), ((2**32, 2**32), ".")):
            self.refuses(message, lambda: ps.declare({"x": shape}, ballast.SGD(1), initializer="zeros {}"),
                         ballast.Error)
        ones = np.ones(3, np.float32)
        self.refuses('optimizers: got none for "x"', lambda: ps.declare({"x": ones}, {"y": ballast.SGD(1)}))
        self.refuses("optimizer: got 0.1, want one of ballast's", lambda: ps.declare({"x": ones}, 0.1))
        self.refuses("learning_rate: got 'fast', want a number", lambda: ps.declare({"x": ones}, ballast.SGD("fast")))
        for bad in (float("nan"), -1, float("inf")):
            self.refuses("learning_rate", lambda: ps.declare({"x": ones}, ballast.SGD(bad)))
        self.refuses("row_wise_adagrad", lambda: ps.declare({"x": ones}, ballast.RowWiseAdagrad(1)))
        self.refuses('did you mean "sgd"', lambda: ps.declare({"x": ones}, "sgdd { }"))
        self.refuses("declaration: .* without the character 0", lambda: ps.declare({"x": ones}, "sgd { }\0"))
        self.refuses("initializer", lambda: ps.declare({"x": (3,)}, ballast.SGD(1), initializer="uniformm {}"))
        self.refuses("seed: got -1", lambda: ps.declare({"x": ones}, ballast.SGD(1), seed=-1))
        ps.declare({"numpy": ones}, ballast.SGD(np.float32(0.5), schedule=ballast.Schedule("cosine", total=np.int64(9))))

    def test_numbers(self):
        ones = np.ones((2, 3), np.float32)
        for examples in (-1, 2**32, 1.5, None, "1"):
            for call in (lambda: self.ps.push({"w": ones}, examples=examples),
                         lambda: self.ps.push_rows({"users": (np.arange(1), ones[:1, :2])}, examples=examples)):
                self.refuses(f"examples: got {re.escape(repr(examples))}, want an integer from 0 to 4294967295", call)
        self.ps.push({"w": ones}, examples=np.int64(2)).result(30)

    def test_rows(self):
        ids, rows = np.arange(3), np.ones((3, 2), np.float32)
        for dtype in (np.int32, np.float32, ">i8"):
            self.refuses('ids of table "users": got dtype', lambda: self.table.pull(np.arange(3).astype(dtype)))
        self.refuses(r'ids of table "users": got shape \(\), want one dimension', lambda: self.table.pull(np.int64(3)))
        self.refuses('ids of table "users": got list', lambda: self.table.pull([1, 2]))
        self.refuses(r'gradients of table "users": got shape \(3, 2\), want \(2, 2\)',
                     lambda: self.table.push(ids[:2], rows))
        self.refuses(r'memory for rows of table "users": got shape \(3, 2\), want \(2, 2\)',
                     lambda: self.table.pull(ids[:2], rows))
        self.refuses('gradients of table "users": got ndarray, want a tuple of ids and gradients',
                     lambda: self.ps.push_rows({"users": rows}))
        self.refuses('table "others" was not declared, want one of', lambda: self.ps.push_rows({"others": (ids, rows)}))
        self.refuses('dim of table "t": got -1', lambda: self.ps.table("t", -1, ballast.SGD(1)))
        self.refuses("min_uses: got -1", lambda: self.ps.table("t", 1, ballast.SGD(1), min_uses=-1))
        self.assertEqual(self.table.pull(np.arange(0)).shape, (0, 2))
        self.table.push(np.arange(0), np.zeros((0, 2), np.float32)).result(30)

    def test_connect(self):
        cases = [
            ("job: got none, want a name", dict(job=None)),
            ("name|job", dict(job='a"\n\0b')),
            ("rank: got -1, want an integer from 0", dict(rank=-1)),
            ("rank: got 4294967295", dict(rank=2**32 - 1)),
            ("examples: got -5", dict(examples=-5)),
            ("epochs: got 0, want an integer from 1", dict(examples=5, batch_size=1)),
            ("durability: got 'often', want one of none, checkpoint", dict(durability="often")),
            ("policy", dict(policy="synk {}")),
            ("codec", dict(codec="gradients: ENCODING_FP3")),
            ("wait_seconds: got 0", dict(wait_seconds=0)),
            ("gather_timeout: got 0, want a number of seconds above 0", dict(gather_timeout=0)),
            ("gather_timeout: got nan", dict(gather_timeout=float("nan"))),
            ("coordinator: got 5, want a str", dict(coordinator=5)),
            ("coordinator: .* without the character 0", dict(coordinator="a\0b")),
            ("/missing", dict(tls_ca="/missing")),
            ("/missing", dict(token_file="/missing")),
        ]
        for message, options in cases:
            self.refuses(message, lambda: ballast.connect(**{"coordinator": self.servers.address, "job": "test",
                                                             **options}), ballast.Error)

    def test_server_that_is_gone_is_named(self):
        with Servers(SERVER) as servers:
            ps = ballast.connect(servers.address, job="test", wait_seconds=1)
            w = np.zeros(1 << 20, np.float32)
            ps.declare({"w": (w.size,)}, ballast.SGD(1), initializer="zeros {}")
            future = ps.push_pull({"w": np.ones_like(w)}, into={"w": w})
            servers.kill(0)
            try:
                future.result(100)
                ps.push_pull({"w": np.ones_like(w)}, into={"w": w}).result(100)
                self.fail("no exception")
            except (ballast.Unavailable, ballast.Timeout, ballast.JobFailed, ballast.MemberLost) as error:
                self.assertRegex(str(error), re.escape(servers.address) + "|server 0|shard 0")
            with self.assertRaises(ballast.Error):
                ps.close()

    def test_server_that_stands_still_is_named(self):
        with Servers(SERVER) as servers:
            ps = ballast.connect(servers.address, job="test")
            w = np.zeros(3, np.float32)
            ps.declare({"w": w}, ballast.SGD(1))
            servers.stop(0)
            try:
                with self.assertRaisesRegex(ballast.Timeout, 'timed out after 0.5 s waiting for the pull of "w" at step 0'):
                    ps.pull({"w": w}, timeout=0.5)
                with self.assertRaisesRegex(ballast.Timeout, 'timed out after 0 s waiting for the pull of "w"'):
                    ps.pull({"w": w}, timeout=0)
            finally:
                servers.go_on(0)
            ps.pull({"w": w}, timeout=60)
            ps.close()

    def test_library_that_does_not_fit(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            other = os.path.join(folder, "other.so")
            with open(os.environ["BALLAST_LIBRARY"], "rb") as file:
                content = file.read()
            self.assertIn(_library.VERSION.encode() + b"\0", content)
            with open(other, "wb") as file:
                file.write(content.replace(_library.VERSION.encode() + b"\0", b"9.9.9\0"))
            text = os.path.join(folder, "text.so")
            with open(text, "w", encoding="utf-8") as file:
                file.write("nonsense")
            for path, want in (("/missing.so", "cannot load Ballast's library: /missing.so: .*BALLAST_LIBRARY"),
                               (text, "cannot load Ballast's library: .*text.so"),
                               (ctypes.util.find_library("m") or "libm.so.6", "cannot load Ballast's library: .*ballast_"),
                               (other, f"got Ballast's library of version 9.9.9, want {_library.VERSION}")):
                with self.subTest(path):
                    status, output = output_of(run_python("import ballast; ballast.__version__",
                                                          environment={"BALLAST_LIBRARY": path}))
                    self.assertEqual(status, 1)
                    self.assertRegex(output, "ImportError: .*" + want)

    def test_servers_of_another_version(self):
        try:
            import grpc
        except ImportError:
            self.skipTest("no grpcio")
        with Servers(SERVER) as servers, grpc.insecure_channel(servers.address) as channel:
            class OtherVersion(grpc.GenericRpcHandler):
                """Passes calls on; what a library joins with is then of protocol version 2."""

                def service(self, details):
                    call = channel.unary_unary(details.method)

                    def handle(request, context):
                        if details.method.endswith("/Join"):
                            assert request.startswith(b"\x08\x01"), request
                            request = b"\x08\x02" + request[2:]
                        try:
                            return call(request, timeout=30)
                        except grpc.RpcError as error:
                            context.set_trailing_metadata(error.trailing_metadata())
                            context.abort(error.code(), error.details())

                    return grpc.unary_unary_rpc_method_handler(handle)

            proxy = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
            proxy.add_generic_rpc_handlers([OtherVersion()])
            port = proxy.add_insecure_port("127.0.0.1:0")
            proxy.start()
            try:
                with self.assertRaisesRegex(ballast.Error, f"speaks protocol version 2 .ballast {ballast.__version__}., "
                                                           "want 1"):
                    ballast.connect(f"127.0.0.1:{port}", job="test")
            finally:
                proxy.stop(None)

    def test_version_is_that_of_the_programs(self):
        with open(VERSION_HEADER, encoding="utf-8") as file:
            version = re.search(r'kVersion\[\] = "(.*)"', file.read()).group(1)
        self.assertEqual((_library.VERSION, ballast.__version__), (version, version))

    def test_structures_are_those_of_the_header(self):
        names = {"options": _library.Options, "membership": _library.Membership, "tensor": _library.Tensor,
                 "step": _library.Step, "rows": _library.Rows, "result": _library.Result, "lease": _library.Lease,
                 "progress": _library.Progress}
        with open(HEADER, encoding="utf-8") as file:
            self.assertEqual(set(re.findall(r"typedef struct ballast_(\w+) \{", file.read())), set(names))
        want, lines = [], []
        for name, kind in names.items():
            want.append(ctypes.sizeof(kind))
            lines.append(f"sizeof(ballast_{name})")
            for field, _ in kind._fields_:
                want += [getattr(kind, field).offset, getattr(kind, field).size]
                lines += [f"offsetof(ballast_{name}, {field})", f"sizeof((({'ballast_' + name}*)0)->{field})"]
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            program = os.path.join(folder, "layout")
            source = "#include <ballast.h>\n#include <stdio.h>\nint main(void) {\n" + "".join(
                f'  printf("%zu\\n", (size_t){line});\n' for line in lines) + "}\n"
            subprocess.run(["cc", "-I", os.path.dirname(os.path.abspath(HEADER)), "-xc", "-", "-o", program],
                           input=source, text=True, check=True)
            got = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(list(map(int, got)), want)

    def test_functions_of_the_library_refuse_null(self):
        lib, worker = ballast.library(), self.ps._worker
        step, tensor = _library.Step(0, 1, -1), (_library.Tensor * 1)()
        ids, rows = (ctypes.c_uint32 * 1)(), (_library.Rows * 1)()
        tensor[0].id, tensor[0].elements = self.ps._tensors["w"].id, 6
        rows[0].table, rows[0].count, rows[0].elements = self.table._id, 1, 2
        null = None
        calls = [
            lambda w: lib.ballast_declare(w, null, 1, ids), lambda w: lib.ballast_declare_tables(w, null, 1, ids),
            lambda w: lib.ballast_declare(w, (ctypes.c_char_p * 1)(b"x"), 1, null),
            lambda w: lib.ballast_declare(w, (ctypes.c_char_p * 1)(null), 1, ids),
            lambda w: lib.ballast_declare(w, (ctypes.c_char_p * 1)(b"x"), 2**64 - 1, ids),
            lambda w: lib.ballast_next_lease(w, 0, null, null), lambda w: lib.ballast_report(w, null),
            lambda w: lib.ballast_catch_up(w, null, 1, null), lambda w: lib.ballast_wait_any(w, 0, null, null),
            lambda w: lib.ballast_wait(w, 2**60, 0, null), lambda w: lib.ballast_wait(w, 0, 0, null),
            lambda _: lib.ballast_join(null, null), lambda _: lib.ballast_shuffled(5, 0, 0, 0, 5, null),
            lambda _: lib.ballast_shuffled(5, 0, 0, 4, 2, null),
            lambda _: lib.ballast_join(ctypes.byref(_library.Options()), ctypes.byref(ctypes.c_void_p())),
            lambda _: lib.ballast_leave(null, null), lambda _: lib.ballast_complete_lease(null, 0, 0, 0),
        ]
        for number, call in enumerate(calls):
            for which in (worker, None):
                with self.subTest(call=number, worker=which is not None), self.assertRaisesRegex(
                        ballast.InvalidArgument, "got (NULL, want a pointer|a count of|none of that number|.* from|a size)"):
                    _library.check(call(which))
        operations = [
            lambda w: lib.ballast_set_values(w, null, 1), lambda w: lib.ballast_push(w, null, tensor, 1),
            lambda w: lib.ballast_push(w, step, null, 1), lambda w: lib.ballast_push(w, step, tensor, 1),
            lambda w: lib.ballast_push(w, step, tensor, 2**64 - 1), lambda w: lib.ballast_pull(w, 0, null, 1),
            lambda w: lib.ballast_pull(w, 0, tensor, 1), lambda w: lib.ballast_push_pull(w, null, tensor, tensor, 1),
            lambda w: lib.ballast_push_pull(w, step, tensor, null, 1), lambda w: lib.ballast_pull_rows(w, 0, null, 1),
            lambda w: lib.ballast_pull_rows(w, 0, rows, 1), lambda w: lib.ballast_push_rows(w, null, rows, 1, 1),
            lambda w: lib.ballast_push_rows(w, step, null, 1, 1), lambda w: lib.ballast_push_rows(w, step, rows, 1, 1),
        ]
        for number, call in enumerate(operations):
            with self.subTest(operation=number):
                self.assertEqual(call(None), 0)
                future = self.ps._completer.begin("call", lambda w: call(w), (), None)
                with self.assertRaisesRegex(ballast.InvalidArgument, "got (NULL, want a pointer|a count of)"):
                    future.result(30)
        self.assertEqual((lib.ballast_error_code(None), lib.ballast_error_message(None)), (0, b""))
        lib.ballast_error_free(None)
        lib.ballast_free(None)


if __name__ == "__main__":
    import ctypes.util
    unittest.main(argv=sys.argv[:1])
