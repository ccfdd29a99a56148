#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Trains a dense model of 100 million parameters (he_normal) for two steps: one server, two workers, one machine. All
# others wait while the server computes 400 MB of initial values, which must not end the job. Not part of CI: it takes
# 5 GB of memory and a minute or more.
#
#   tests/fault/large_model.sh [PROGRAMS]    directory of ballast, ballast_server and ballast_worker (bazel-bin/...)
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ $# -gt 0 ]]; then
  ballast=$1/ballast
else
  bazel build //cli:ballast //server:ballast_server //worker:ballast_worker
  ballast=bazel-bin/cli/ballast
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# 64 examples of 100 features and a label.
awk 'BEGIN { srand(1); for (i = 0; i < 64; ++i) { line = i % 10; for (j = 0; j < 100; ++j) line = line "," rand();
  print line } }' >"$folder/train.csv"
# 100 x 10,000 + 10,000 x 9,900 + 9,900 x 10 weights, and biases.
cat >"$folder/job.textproto" <<JOB
name: "large_model"
seed: 1
data { train { csv { path: "train.csv" label_column: 0 } } }
model {
  layers { name: "hidden1" dense { units: 10000 initializer { he_normal {} } } }
  layers { relu {} }
  layers { name: "hidden2" dense { units: 9900 initializer { he_normal {} } } }
  layers { relu {} }
  layers { name: "kinds" dense { units: 10 initializer { he_normal {} } } }
  loss { softmax_cross_entropy {} }
}
training { epochs: 1 batch_size: 16 }
optimizer { sgd { learning_rate: 0.01 } }
policy { sync {} }
JOB
time "$ballast" launch "$folder/job.textproto" --servers 1 --workers 2 --run-dir "$folder/run"
