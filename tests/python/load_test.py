#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ballast.load() beside `ballast predict`, on models that `ballast launch` has trained.

Usage: load_test.py SERVER LIBRARY BALLAST WORKER PROTO...
"""

import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import struct
import sys
import tempfile
import tracemalloc
import unittest

sys.path[:0] = ["python", "tests/python"]

try:
    import numpy as np
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)
try:
    import torch
    torch.set_num_threads(1)
except ImportError:
    torch = None

BALLAST = os.path.abspath(sys.argv[3])
PROTOS = sys.argv[5:]
os.environ["BALLAST_SERVER_BINARY"] = os.path.abspath(sys.argv[1])
os.environ["BALLAST_WORKER_BINARY"] = os.path.abspath(sys.argv[4])

import ballast
from ballast._saved import layers as saved_layers
from ballast._saved import safetensors
from trained_jobs import Clicks, Columns, Fields, Images, Numbers, train

FOLDER = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
CASES = {kind.__name__.lower(): kind() for kind in (Images, Columns, Clicks, Fields, Numbers)}


def prepare(name):
    """Trains a job and loads its model."""
    case = CASES[name]
    train(BALLAST, case, FOLDER / name)
    case.model = ballast.load(case.run)
    case.arguments, case.keywords = case.data(case.model)


def header_of(path):
    """Returns the header of a safetensors file, and its values."""
    contents = pathlib.Path(path).read_bytes()
    end = 8 + int.from_bytes(contents[:8], "little")
    return json.loads(contents[8:end]), contents[end:]


def write_file(path, header, values, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + values)
    return path


class LoadTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            list(pool.map(prepare, CASES))

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=FOLDER))

    def changed(self, name, change, values=lambda values: values):
        """Returns a copy of a model's file without its tables, after change(header)."""
        header, data = header_of(CASES[name].run / "model.safetensors")
        header = change(header) or header
        return write_file(self.folder / "changed.safetensors", header, values(data))

    def changed_model(self, name, change):
        """The same after change(description of the model)."""

        def change_header(header):
            model = json.loads(header["__metadata__"]["model"])
            change(model)
            header["__metadata__"]["model"] = json.dumps(model)

        return self.changed(name, change_header)

    def assert_refused(self, message, call, *arguments, error=ballast.InvalidArgument, **keywords):
        with self.subTest(message), self.assertRaisesRegex(error, message):
            call(*arguments, **keywords)

    def test_outputs_are_those_of_predict(self):
        for name, case in CASES.items():
            with self.subTest(name):
                got = case.model(*case.arguments, **case.keywords)
                self.assertEqual((len(got), got.dtype), (len(case.want), np.float32))
                if "prediction" in case.want[0]:
                    want = np.array([line["prediction"] for line in case.want])
                else:
                    want = np.array([list(line["probabilities"].values()) for line in case.want])
                    self.assertEqual(case.model.classes, tuple(case.want[0]["probabilities"]))
                    self.assertEqual(case.model.classify(*case.arguments, **case.keywords),
                                     [line["class"] for line in case.want])
                    got = np.stack([1 - got, got], 1) if got.ndim == 1 else got
                self.assertGreater(want.std(axis=0).min(), 1e-3, "the test would not see an error")
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

    def test_jobs_have_all_kinds_of_layers(self):
        kinds = {layer.kind for case in CASES.values() for layer in saved_layers.flatten(case.model._layers)}
        self.assertEqual(kinds, set(saved_layers.KINDS) - {"custom"})

    def test_kinds_and_their_fields_are_those_of_job_proto(self):
        with open(next(path for path in PROTOS if path.endswith("/job.proto")), encoding="utf-8") as file:
            text = file.read()
        bodies = {name: re.sub(r"//.*", "", body) for name, body in
                  re.findall(r"^message (\w+) \{(\}|.*?^\})$", text, re.S | re.M)}
        oneof = re.search(r"oneof kind \{(.*?)\}", bodies["Layer"], re.S)[1]
        kinds = re.findall(r"^    (\w+) (\w+) = \d+;", oneof, re.M)
        self.assertGreater(len(kinds), 10)
        want = {kind: set(re.findall(r"^  (?:repeated |optional )?[\w<>, ]+ (\w+) = \d+", bodies[message], re.M))
                for message, kind in kinds}
        self.assertEqual({kind: set(row.fields) for kind, row in saved_layers.KINDS.items()}, want)
        if torch is not None:
            from ballast.torch._loaded import FORWARD
            self.assertEqual(set(FORWARD), set(want))

    @unittest.skipIf(torch is None, "needs PyTorch")
    def test_module_has_the_same_outputs_and_goes_on_training(self):
        def tensors(value):
            if isinstance(value, np.ndarray):
                return torch.tensor(value.view(np.int64) if value.dtype == np.uint64 else value)
            if isinstance(value, dict):
                return {key: tensors(each) for key, each in value.items()}
            return type(value)(tensors(each) for each in value) if isinstance(value, (list, tuple)) else value

        torch.manual_seed(1)
        for name, case in CASES.items():
            with self.subTest(name):
                module = case.model.torch()
                self.assertFalse(module.training)
                x, ids = (*case.arguments, None, None)[:2]
                ids = case.keywords.get("ids", ids)
                if isinstance(x, dict):
                    x, bags = case.model._inputs.encode(x)
                    ids = {field: (bag.ids, bag.ends - bag.counts()) for field, bag in zip(case.model.fields, bags)}
                x, ids = tensors(x), tensors(ids)
                raw = case.model.predict(*case.arguments, **case.keywords, raw=True)
                np.testing.assert_allclose(module(x, ids).detach().numpy(), raw, rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(module.probabilities(x, ids).detach().numpy(),
                                           case.model(*case.arguments, **case.keywords), rtol=1e-5, atol=1e-5)
                tables = {f"{table}/rows" for table in case.model.tables}
                self.assertEqual(set(module.state_dict()), set(case.model.weights) | tables)
                module.train()
                optimizer = torch.optim.SGD(module.parameters(), 0.01)
                losses = []
                for _ in range(6):
                    loss = module(x, ids).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                self.assertLess(losses[-1], losses[0])
                for key, parameter in module.named_parameters():
                    self.assertGreater(parameter.grad.abs().max().item(), 0, key)
                for key, buffer in module.named_buffers():
                    if "/running_" in key:
                        self.assertFalse(np.array_equal(buffer.numpy(), case.model.weights[key]), key)
                # The model itself stays.
                np.testing.assert_array_equal(case.model.predict(*case.arguments, **case.keywords, raw=True), raw)

    def test_says_what_it_has_loaded(self):
        model = CASES["columns"].model
        self.assertEqual((model.job, model.step, model.version), ("columns", 24, "0.1.0"))
        self.assertEqual(model.loss, "softmax_cross_entropy")
        self.assertEqual(model.feature_names, ["age", "color=blue", "color=red", "color=ä", "size", "age is missing",
                                               "color is missing"])
        self.assertEqual((model.features, model.fields), (7, ["tags", "user", "country"]))
        self.assertEqual(model.weights["dense1/weight"].shape, (3, 7))
        self.assertEqual(model.tables["a/b"].values.shape[1], 3)
        self.assertRegex(repr(model), "^<ballast.Model 'columns': 7 -> dense 3 -> embedding 9 -> .*, 99 weights, "
                         ".* rows of table a/b, .*, step 24>$")
        self.assertRegex(repr(CASES["images"].model), "^<ballast.Model 'images': 9x8x1 -> conv2d 9x8x4 -> batch_norm ")
        self.assertIsNone(CASES["numbers"].model.classes)
        self.assertIsInstance(model, ballast.Model)
        self.assertEqual(ballast.load(str(CASES["numbers"].run / "model.safetensors")).step, 57)

    def test_takes_ids_in_four_forms(self):
        case = CASES["fields"]
        model, ids = case.model, case.keywords["ids"]
        want = model(ids=ids)
        n = len(want)
        for name, form in (("[n, 1]", lambda v: v[:, None]), ("lists", lambda v: [[int(i)] for i in v]),
                           ("offsets", lambda v: (v, np.arange(n))), ("unsigned", lambda v: v.view(np.uint64))):
            with self.subTest(name):
                np.testing.assert_array_equal(model(ids={field: form(v) for field, v in ids.items()}), want)
        one = {field: np.stack([v, v], 1) for field, v in ids.items()}
        bias = model.weights["dense1/bias"]
        twice = model.predict(ids=one, raw=True) - bias
        np.testing.assert_allclose(twice, 2 * (model.predict(ids=ids, raw=True) - bias), rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(model.predict(ids={field: [[]] * 2 for field in ids}, raw=True), [bias] * 2)
        self.assertEqual(model(ids={field: v[:0] for field, v in ids.items()}).shape, (0, 2))

    def test_images_may_have_the_shape_of_images(self):
        case = CASES["images"]
        want = case.model(*case.arguments)
        np.testing.assert_array_equal(case.model(case.images), want)
        np.testing.assert_array_equal(case.model(case.images[..., None]), want)

    def test_missing_fields_have_their_defaults(self):
        # `ballast launch` writes most defaults.
        def strip(model):
            del model["input"]["channels"], model["layers"][7]["max_pool"]["stride"]
            for layer in [model["layers"][0], *model["layers"][5]["residual"]["layers"][:1]]:
                self.assertEqual(layer["conv2d"].pop("stride"), ["1"])
            for layer in [model["layers"][1], *model["layers"][4]["residual"]["layers"][:1]]:
                self.assertIn(layer["name"], ("batch_norm1", "layer_norm1"))
                layer.get("layer_norm", {}).pop("epsilon", None)
                layer.get("batch_norm", {}).pop("momentum", None)

        case = CASES["images"]
        model = ballast.load(self.changed_model("images", strip))
        np.testing.assert_array_equal(model(case.images), case.model(case.images))

    def test_changed_weights_count(self):
        model = ballast.load(CASES["numbers"].run)
        before = model(CASES["numbers"].x)
        model.weights["dense2/bias"] += 2
        np.testing.assert_allclose(model(CASES["numbers"].x), before + 2, rtol=1e-5)

    def test_custom_layer_is_a_function(self):
        def change(model):
            model["layers"][1] = {"name": "own1", "custom": {"type": "leak", "numbers": {"slope": 0}}}

        path = self.changed_model("numbers", change)
        case = CASES["numbers"]

        def leak(x, numbers, weights):
            return x * (x > 0) + numbers["slope"] * x * (x < 0)

        model = ballast.load(path, custom={"leak": leak})
        np.testing.assert_array_equal(model(case.x), case.model(case.x))
        if torch is not None:
            got = model.torch()(torch.tensor(case.x))[:, 0].detach()
            np.testing.assert_allclose(got, case.model(case.x), rtol=1e-5, atol=1e-5)
        self.assert_refused('layer "own1": got the custom type "leak", which .* want its function', ballast.load, path)

    def test_refuses_data_that_do_not_fit(self):
        images, numbers, columns, fields = (CASES[name].model for name in ("images", "numbers", "columns", "fields"))
        table = CASES["columns"].arguments[0]
        ids = CASES["fields"].keywords["ids"]
        cases = [
            (r"x: got shape \(2, 5\), want \(n, 4\)", numbers, (np.zeros((2, 5)),)),
            (r"x: got shape \(4,\), want \(n, 4\)", numbers, (np.zeros(4),)),
            (r"x: got shape \(\), want \(n, 4\)", numbers, (3,)),
            (r"x: got shape \(2, 8, 9\), want \(n, 72\) or \(n, 9, 8, 1\) or \(n, 9, 8\)", images,
             (np.zeros((2, 8, 9)),)),
            ("x: could not convert string to float: .*, want an array of numbers", numbers, ([["a", 1, 2, 3]],)),
            (r"x: got none, want shape \(n, 4\)", numbers, ()),
            ("ids: got the fields 0, want none", numbers, (np.zeros((2, 4)), {"0": [1, 2]})),
            ("columns: got them for a model of libsvm data, want x as arrays", numbers, ({"a": [1]},)),
            ("ids: got the fields none, want 0, 1, 2", fields, ()),
            ("ids: got the fields 0, 1, want 0, 1, 2", fields, (None, {"0": ids["0"], "1": ids["1"]})),
            ('ids of field "1": got dtype float64, want int64', fields, (None, {**ids, "1": np.ones(60)})),
            ('ids of field "1": got 59 examples, want 60', fields, (None, {**ids, "1": ids["1"][1:]})),
            (r'ids of field "1": got shape \(60, 1, 1\), want \(n,\)', fields,
             (None, {**ids, "1": ids["1"][:, None, None]})),
            ('ids of field "1": .*offsets that ascend from 0', fields,
             (None, {**ids, "1": (ids["1"], np.arange(60)[::-1])})),
            ('columns: got no "age", want age, color, user, tags, country, size$', columns, ({},)),
            ('column "color": got 2 values, want 60', columns, ({**table, "color": ["red", "red"]},)),
            ('column "size": could not convert .*, want numbers', columns, ({**table, "size": ["big"] * 60},)),
        ]
        for message, model, arguments in cases:
            self.assert_refused(message, model, *arguments)
        self.assert_refused("classify: got a regression", numbers.classify, np.zeros((2, 4)))
        self.assert_refused("field: got 'x', want one of 0, 1, 2", fields.row_id, "x", 1)
        self.assert_refused('value of field "0": got -1, want a whole number', fields.row_id, "0", -1)

    def test_refuses_what_is_no_model(self):
        self.assert_refused("nowhere: there is no such file", ballast.load, self.folder / "nowhere",
                            error=ballast.NotFound)
        self.assertTrue(issubclass(ballast.NotFound, FileNotFoundError))
        self.assert_refused("got a directory without model.safetensors, want a run directory", ballast.load,
                            self.folder, error=ballast.NotFound)
        (self.folder / "model.json").touch()
        self.assert_refused("the run has no model.safetensors yet", ballast.load, self.folder, error=ballast.NotFound)
        self.assert_refused("got a device or a pipe", ballast.load, "/dev/zero")
        self.assert_refused("File name too long, want a file", ballast.load, self.folder / ("x" * 300))

    def test_refuses_damaged_files_and_says_where(self):
        path = self.folder / "file"
        whole = (CASES["numbers"].run / "model.safetensors").read_bytes()
        contents = [
            (b"", "got 0 bytes, want at least 8"),
            (whole[:100], r"got a header of \d+ bytes, want at most 92 \(is the file truncated"),
            (b"\xff" * 8 + whole[8:], "got a header of 18446744073709551615 bytes, want at most"),
            (whole[:-4], 'tensor "dense2/bias": got bytes .*, want it to begin at .* and to fit'),
            (whole + b"1234", "bytes of values, want"),
            (whole[:8] + b"[" + whole[9:], "header: not JSON"),
            (whole.replace(b"F32", b"F\xff2"), "header: not JSON"),
        ]
        for damaged, message in contents:
            path.write_bytes(damaged)
            self.assert_refused(f"{path}: .*{message}", ballast.load, path)
        _, values = header_of(CASES["numbers"].run / "model.safetensors")
        headers = [(b"{}", "bytes of values, want 0"), (b"[1]", "got JSON of a list"), (b"[" * 100000, "not JSON"),
                   (b'{"a": ' + b"9" * 10**6 + b"}", "not JSON"), (b'{"a": 1, "a": 2}', "twice"),
                   (b'{"a": NaN}', "not JSON")]
        for header, message in headers:
            write_file(path, header, values)
            self.assert_refused(message, ballast.load, path)

    def test_refuses_damaged_tensors_by_name(self):
        def tensor(**fields):
            return lambda header: header["dense1/weight"].update(fields)

        def metadata(**fields):
            return lambda header: header["__metadata__"].update(fields)

        cases = [
            (tensor(dtype="F16"), 'tensor "dense1/weight": got dtype F16, want F32'),
            (tensor(shape=[5, 5]), r'tensor "dense1/weight": got 80 bytes, want 100 for shape \[5, 5\]'),
            (tensor(shape=[4, 5]), r'tensor "dense1/weight": got shape \(4, 5\), want shape \(5, 4\)'),
            (tensor(shape=[2**62, 2**62]), 'tensor "dense1/weight": got 80 bytes, want'),
            (tensor(shape=[-5, -4]), 'tensor "dense1/weight": shape: got'),
            (tensor(shape="ab"), 'tensor "dense1/weight": shape: got .*, want a list'),
            (tensor(shape=[1] * 20 + [5, 4]), "got 22 dimensions"),
            (tensor(data_offsets=[4, 84]), "want it to begin at"),
            (tensor(data_offsets=[0]), r"data_offsets: got \[0\], want \[begin, end\]"),
            (lambda header: header["dense1/bias"].update(data_offsets=[0, 20]), "want it to begin at"),
            (lambda header: header.update({"dense9/weight": header.pop("dense1/weight")}),
             r'tensor "dense1/weight": got none, want shape \(5, 4\)'),
            (lambda header: header.pop("__metadata__") and None, 'got no "model" in the metadata'),
            (metadata(step="-1"), "metadata: step: got '-1'"),
            (metadata(model="{"), 'metadata "model": not JSON'),
            (metadata(features="10"), 'inputs: got \'4\', want 10'),
            (metadata(normalization='{"stddev": "x"}'), 'metadata "normalization": stddev: got'),
            (metadata(normalization='{"stddev": 0}'), 'metadata "normalization": stddev: got 0, want a number above 0'),
            (metadata(table='{"columns": [{"kind": "x"}]}'), 'metadata "table": columns 0: kind: got'),
            (metadata(id_fields='[1]'), "id_fields: got .*, want a list of texts"),
        ]
        for change, message in cases:
            path = self.changed("numbers", lambda header, change=change: change(header) and None)
            self.assert_refused(message, ballast.load, path)

    def test_refuses_models_that_it_does_not_know_by_layer_and_version(self):
        def layer(index, kind, **fields):
            def change(model):
                model["layers"][index] = {"name": model["layers"][index]["name"], kind: fields}
            return change

        cases = [
            ("numbers", layer(1, "swish"), 'layer "relu1": got the kind swish, written by Ballast 0.1.0, want one of '),
            ("numbers", layer(1, "relu", leak=0.1),
             'layer "relu1" .relu, written by Ballast 0.1.0.: got the field "leak", want only none'),
            ("numbers", lambda model: model["layers"][1].update(tanh={}), "got the kind relu, tanh"),
            ("numbers", lambda model: model["layers"].clear(), "got no layers"),
            ("numbers", lambda model: model["layers"][1].update(name="dense1"), "want unique names"),
            ("numbers", lambda model: model.update(loss={"hinge": {}}), "loss: got hinge, written by Ballast 0.1.0"),
            ("numbers", lambda model: model.update(more=1), 'got the field "more"'),
            ("numbers", layer(0, "dense", units=2**40), "units: got 1099511627776, want 1 to 1048576"),
            ("numbers", layer(0, "dense", units=3), r'"dense1/weight": got shape \(5, 4\), want shape \(3, 4\)'),
            ("numbers", layer(1, "dot_interaction", dim=3), "dim: got 3, want a divisor of its 5 inputs"),
            ("numbers", layer(1, "embedding", table="t"), "table: got 't', want a table of the model: it has none"),
            ("images", layer(2, "max_pool", kernel=[65536], padding=[65535]), "its padded input is .*, want at most"),
            ("images", layer(0, "conv2d", filters=2**20, kernel=[1], padding=[20]), "padding: got .* the kernel, 1x1"),
            ("images", layer(0, "conv2d", filters=2**20, kernel=[99], padding=[98]), "it gives .*, want at most"),
            ("images", layer(2, "max_pool", kernel=[99]), "kernel: got 99x99, want at most the padded input"),
            ("images", layer(2, "max_pool", kernel=["x"]), "kernel: got .*, want 1 to 65536"),
            ("images", lambda model: model["input"].update(height="7"), "got 7x8x1, want 72 features"),
        ]
        for name, change, message in cases:
            self.assert_refused(message, ballast.load, self.changed_model(name, change))

        def nest(model):
            for _ in range(9):
                model["layers"][1] = {"name": "r", "residual": {"layers": [model["layers"][1]]}}

        self.assert_refused("more than 8 residuals deep", ballast.load, self.changed_model("numbers", nest))

    def test_refuses_missing_and_damaged_tables(self):
        run_folder = self.folder / "run"

        def refused(message, change, error=ballast.InvalidArgument):
            shutil.rmtree(run_folder, ignore_errors=True)
            shutil.copytree(CASES["columns"].run, run_folder)
            change(run_folder / "tables" / "a%2Fb")
            self.assert_refused(message, ballast.load, run_folder, error=error)

        def manifest(**fields):
            def change(table):
                file = table / "manifest.json"
                file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
            return change

        def damage(table):
            file = table / "rows-00000.safetensors"
            contents = bytearray(file.read_bytes())
            contents[-3] ^= 1
            file.write_bytes(contents)

        missing = 'model.safetensors: the model has table "a/b", whose rows are missing: .*: there is no such file; a'
        refused(missing, shutil.rmtree, ballast.NotFound)
        refused(missing, lambda table: (table / "rows-00000.safetensors").unlink(), ballast.NotFound)
        refused("rows-00000.safetensors: got .* bytes with checksum .* as in the manifest; the file is damaged", damage)
        refused("manifest.json: not JSON", lambda table: (table / "manifest.json").write_text("{"))
        refused('manifest.json: got rows of table "rare" of dim 2, want "a/b" of dim 3',
                manifest(spec={"name": "rare", "dim": 2}))
        refused("name: got '../x', want a file of this folder", manifest(files=[{"name": "../x"}]))
        refused("can't encode character", manifest(files=[{"name": "\ud800"}]))
        refused("initializer: got the field \"he_normal\"",
                manifest(spec={"name": "a/b", "dim": 3, "initializer": {"he_normal": {}}}))

    def test_reads_rows_of_16_bits(self):
        values = []
        for dtype, data in (("F32", struct.pack("<2f", 1.5, -2)), ("BF16", struct.pack("<2H", 0x3FC0, 0xC000))):
            header = {"values": {"dtype": dtype, "shape": [1, 2], "data_offsets": [0, len(data)]}}
            path = write_file(self.folder / "rows", header, data)
            values.append(safetensors.read(str(path), ("BF16", "F32")).tensors["values"])
        np.testing.assert_array_equal(*values)

    def test_any_damage_is_an_error_or_harmless(self):
        draw = random.Random(4)
        for name in ("numbers", "images"):
            whole = (CASES[name].run / "model.safetensors").read_bytes()
            end = 8 + int.from_bytes(whole[:8], "little")
            path = self.folder / "file"
            refused = 0
            for _ in range(300):
                damaged = bytearray(whole)
                for _ in range(draw.choice((1, 1, 3))):
                    at = draw.randrange(draw.choice((8, end)))
                    damaged[at] = draw.choice((damaged[at] ^ 1 << draw.randrange(8), *b'0199"{}[],:'))
                path.write_bytes(damaged)
                tracemalloc.start()
                try:
                    ballast.load(path)
                except ballast.InvalidArgument as error:
                    self.assertIn(str(path), str(error))
                    refused += 1
                finally:
                    _, peak = tracemalloc.get_traced_memory()
                    tracemalloc.stop()
                self.assertLess(peak, 100 * len(whole) + 10**6)
            self.assertGreater(refused, 150)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
