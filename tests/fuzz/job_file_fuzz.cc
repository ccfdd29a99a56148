// SPDX-License-Identifier: Apache-2.0
// Job files are refused with a message, or give a job that survives writing and reading.
#include "common/job/job_file.h"
#include "google/protobuf/text_format.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {

std::vector<std::string> FuzzSeeds() {
  return {
      R"(# A comment.
name: "blobs" seed: 5
data {
  train { csv { path: "train.csv" label_column: -1 header: true delimiter: ";" } }
  test { libsvm { path: "test.libsvm.gz" features: 4 zero_based: true } }
  normalization { mean: 72.94 stddev: 90.02 }
}
model {
  layers { dense { units: 16 } }
  layers { relu {} }
  layers { dropout { rate: 0.5 } }
  layers { dense { units: 3 } }
  loss { softmax_cross_entropy {} }
}
training { epochs: 3 batch_size: 8 }
optimizer { adamw { learning_rate: 1e-3 beta1: 0.9 } clip_norm: 1 schedule { cosine {} warmup: 10 } }
policy { bounded { steps_ahead: 4 } }
codec { gradients: ENCODING_TOP_K top_k_fraction: 0.1 }
)",
      R"(name: "image" data { train { idx { images: "a.gz" labels: "b.gz" } } }
model {
  input { height: 28 width: 28 channels: 1 }
  layers { conv2d { filters: 8 kernel: 3 } } layers { batch_norm {} } layers { gelu {} }
  layers { residual { layers { conv2d { filters: 8 kernel: 3 } } } }
  layers { max_pool { size: 2 } } layers { flatten {} } layers { dense { units: 10 } }
  loss { softmax_cross_entropy {} }
}
training { epochs: 1 batch_size: 32 precision: PRECISION_BF16 recompute { } }
optimizer { sgd { learning_rate: 0.1 } } policy { sync { quorum: 1 deterministic: true } })",
      R"(name: "r" data { train { csv { path: "t" } } } model { layers { dense { units: 1 } }
loss { mean_squared_error {} } } training { epochs: 1 batch_size: 1 }
optimizer { momentum { learning_rate: .1 momentum: .9 } } policy { async { scale_by_staleness: true } })",
  };
}

void FuzzOne(FuzzInput input) {
  const absl::string_view text = input.Rest();
  const absl::StatusOr<v1::Job> job = ParseJob(text, "job.textproto");
  if (!job.ok()) {
    Require(absl::IsInvalidArgument(job.status()), "a refused job is an invalid argument");
    Require(!job.status().message().empty(), "an error has a message");
    return;
  }
  std::string written;
  Require(google::protobuf::TextFormat::PrintToString(*job, &written), "a job can be written");
  const absl::StatusOr<v1::Job> again = ParseJob(written, "again.textproto");
  Require(again.ok(), "a written job can be read");
  Require(again->SerializeAsString() == job->SerializeAsString(), "a written job reads back unchanged");
}

}  // namespace ballast
