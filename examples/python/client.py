#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A complete Ballast client that needs only Ballast's .proto files.

Declares a tensor on a running ballast_server, pushes one gradient, pulls the result and prints it.
Generate the stubs and run it (Debian: protobuf-compiler, protobuf-compiler-grpc, python3-grpcio, python3-protobuf):

    mkdir -p stubs
    protoc -I proto --python_out=stubs --grpc_out=stubs \\
        --plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin proto/ballast/v1/*.proto
    PYTHONPATH=stubs /usr/bin/python3 examples/python/client.py 127.0.0.1:7700

with `bazel-bin/server/ballast_server` in another terminal. A server with TLS and tokens requires --tls_ca, --token_file
and, if it asks for certificates, --tls_cert and --tls_key: files that `ballast keys` creates.
"""

import argparse
import array
import sys
import time

import grpc

from ballast.v1 import parameter_service_pb2 as ps
from ballast.v1 import parameter_service_pb2_grpc as ps_grpc
from ballast.v1 import tensor_pb2

JOB = "python-example"
TENSOR_ID = 1
TIMEOUT_SECONDS = 10
# The start time in microseconds: it increases with every run, so that a push is not taken for one of an earlier run.
INCARNATION = time.time_ns() // 1000


def encode(values):
    """Encodes values as little-endian fp32, like every payload of this example."""
    data = array.array("f", values)
    if sys.byteorder == "big":
        data.byteswap()
    return data.tobytes()


def decode(payload):
    data = array.array("f")
    data.frombytes(payload)
    if sys.byteorder == "big":
        data.byteswap()
    return data.tolist()


def declare(stub):
    """Declares a 2 x 3 tensor of ones, trained by SGD with learning rate 0.5; returns its slices."""
    spec = tensor_pb2.TensorSpec(id=TENSOR_ID, name="weight", shape=[2, 3])
    spec.initializer.constant.value = 1.0
    spec.optimizer.sgd.learning_rate = 0.5
    request = ps.DeclareTensorsRequest(job=JOB, workers=1)
    # The presence of `async` is its only content, and `async` is a Python keyword.
    getattr(request.policy, "async").SetInParent()
    request.tensors.add(spec=spec)
    return stub.DeclareTensors(request, timeout=TIMEOUT_SECONDS).tensors[0].slices


def push(stub, gradient, slices, sequence):
    """Sends each slice's part of the gradient. Sending the same sequence again is harmless."""
    request = ps.PushRequest()
    request.header.job = JOB
    request.header.worker = 0
    request.header.incarnation = INCARNATION
    request.header.sequence = sequence
    request.header.step = 0
    request.header.examples = 1
    for part in slices:
        request.gradients.add(
            tensor_id=TENSOR_ID,
            slice_index=part.index,
            version=0,
            encoding=tensor_pb2.ENCODING_FP32,
            payload=encode(gradient[part.offset:part.offset + part.elements]),
        )
    return stub.Push(request, timeout=TIMEOUT_SECONDS).outcome


def pull(stub, slices):
    request = ps.PullRequest(job=JOB, step=1)
    for part in slices:
        request.slices.add(tensor_id=TENSOR_ID, slice_index=part.index)
    values = []
    for part in stub.Pull(request, timeout=TIMEOUT_SECONDS).values:
        values += decode(part.payload)
    return values


def parse_flags():
    parser = argparse.ArgumentParser(description="Pushes to and pulls from a ballast_server.")
    parser.add_argument("address", metavar="HOST:PORT")
    for flag in ("tls_ca", "tls_cert", "tls_key", "token_file"):
        parser.add_argument(f"--{flag}", "--" + flag.replace("_", "-"), metavar="FILE")
    return parser.parse_args()


def open_channel(flags):
    """Opens a plaintext channel without --tls_ca, which a server accepts on the same machine."""
    if flags.tls_ca is None:
        return grpc.insecure_channel(flags.address)

    def read(path):
        if path is None:
            return None
        with open(path, "rb") as file:
            return file.read()

    credentials = grpc.ssl_channel_credentials(read(flags.tls_ca), read(flags.tls_key), read(flags.tls_cert))
    if flags.token_file is not None:
        # The file contains "worker JOB TOKEN".
        token = read(flags.token_file).decode().split()[2]
        credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
    return grpc.secure_channel(flags.address, credentials)


def main():
    flags = parse_flags()
    try:
        with open_channel(flags) as channel:
            stub = ps_grpc.ParameterServiceStub(channel)
            slices = declare(stub)
            outcome = push(stub, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], slices, sequence=1)
            print(f"applied {outcome.applied}, learning rate {outcome.learning_rate}")
            again = push(stub, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], slices, sequence=1)
            print(f"sent again: duplicate {again.duplicate}")
            print("weight", pull(stub, slices))
    except grpc.RpcError as error:
        print(f"error: {flags.address}: {error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
