#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A client of a sparse table that needs only Ballast's .proto files.

Declares a table on a running ballast_server, pushes gradients of a few rows, pulls rows and prints them. Generate the
stubs and start a server as client.py says, then:

    PYTHONPATH=stubs /usr/bin/python3 examples/python/rows.py 127.0.0.1:7700

The flags are those of client.py.
"""

import struct
import sys

import grpc

from ballast.v1 import parameter_service_pb2 as ps
from ballast.v1 import parameter_service_pb2_grpc as ps_grpc
from ballast.v1 import table_pb2
from ballast.v1 import tensor_pb2

from client import INCARNATION, TIMEOUT_SECONDS, decode, encode, open_channel, parse_flags

JOB = "python-rows-example"
TABLE_ID = 1
DIM = 2
RANGE_BITS = 12


def encode_ids(ids):
    return struct.pack(f"<{len(ids)}Q", *ids)


def declare(stub):
    """Declares a table of rows of 2 ones, trained by SGD with learning rate 0.5; this server has all of its ranges."""
    spec = table_pb2.TableSpec(id=TABLE_ID, name="users", dim=DIM, range_bits=RANGE_BITS)
    spec.initializer.constant.value = 1.0
    spec.optimizer.sgd.learning_rate = 0.5
    request = ps.DeclareTensorsRequest(job=JOB, workers=1)
    # The presence of `async` is its only content, and `async` is a Python keyword.
    getattr(request.policy, "async").SetInParent()
    request.tables.add(spec=spec).spans.add(first=0, count=1 << RANGE_BITS, shard=0)
    stub.DeclareTensors(request, timeout=TIMEOUT_SECONDS)


def push_rows(stub, ids, gradients, sequence):
    """Sends a gradient for each id. Sending the same sequence again is harmless."""
    request = ps.PushRowsRequest(messages_of_step=1)
    request.header.job = JOB
    request.header.worker = 0
    request.header.incarnation = INCARNATION
    request.header.sequence = sequence
    request.header.step = 0
    request.header.examples = 1
    # The server sorts the ids, and adds the gradients of a repeated one.
    request.gradients.add(
        table_id=TABLE_ID,
        ids=encode_ids(ids),
        unordered=True,
        encoding=tensor_pb2.ENCODING_FP32,
        payload=encode(gradients),
    )
    return stub.PushRows(request, timeout=TIMEOUT_SECONDS).outcome


def pull_rows(stub, ids):
    """Returns the values of each id's row, in the order of the ids."""
    request = ps.PullRowsRequest(job=JOB)
    request.queries.add(table_id=TABLE_ID, ids=encode_ids(ids), unordered=True)
    values = decode(stub.PullRows(request, timeout=TIMEOUT_SECONDS).values[0].payload)
    return [values[i:i + DIM] for i in range(0, len(values), DIM)]


def main():
    flags = parse_flags()
    try:
        with open_channel(flags) as channel:
            stub = ps_grpc.ParameterServiceStub(channel)
            declare(stub)
            # Any 64 bits are an id. Id 7 is repeated.
            ids = [7, 2**64 - 1, 7]
            outcome = push_rows(stub, ids, [2.0, 4.0, 6.0, 8.0, 2.0, 2.0], sequence=1)
            print(f"applied {outcome.applied}, created {outcome.created}")
            again = push_rows(stub, ids, [2.0, 4.0, 6.0, 8.0, 2.0, 2.0], sequence=1)
            print(f"sent again: duplicate {again.duplicate}")
            # Nobody has pushed row 0, so it has its initial values.
            for row, values in zip((7, 0, 2**64 - 1), pull_rows(stub, [7, 0, 2**64 - 1])):
                print(f"row {row}:", values)
    except grpc.RpcError as error:
        print(f"error: {flags.address}: {error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
