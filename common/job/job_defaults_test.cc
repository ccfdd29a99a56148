// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_defaults.h"

#include <gtest/gtest.h>

#include "common/job/job_file.h"

namespace ballast {
namespace {

constexpr char kJob[] = R"(name: "tiny"
data { train { csv { path: "train.csv" } } }
model {
  input { height: 2 width: 2 }
  layers { conv2d { filters: 4 kernel: 3 padding: 1 } }
  layers { residual { layers { batch_norm { momentum: 0.5 } } } }
  layers { max_pool { kernel: 2 } }
  layers { average_pool {} }
  layers { dense { units: 10 } }
  loss { mean_squared_error {} }
}
training { epochs: 3 batch_size: 8 wait_seconds: 30 }
optimizer { adam { learning_rate: 0.5 } }
durability { mode: WAL }
)";

TEST(WithDefaultsTest, FillsInWhatTheFileLeavesOut) {
  const v1::Job job = WithDefaults(ParseJob(kJob, "tiny").value());
  EXPECT_EQ(job.training().ShortDebugString(),
            "epochs: 3 batch_size: 8 wait_seconds: 30 report_every_steps: 10 accumulate_batches: 1");
  EXPECT_EQ(job.codec().ShortDebugString(), "gradients: ENCODING_FP32 values: ENCODING_FP32");
  EXPECT_EQ(job.durability().ShortDebugString(),
            "mode: WAL checkpoint_seconds: 60 keep_checkpoints: 2 return_seconds: 60");
  EXPECT_EQ(job.model().input().ShortDebugString(), "height: 2 width: 2 channels: 1");
  const char* const layers[] = {
      "conv2d { filters: 4 kernel: 3 stride: 1 padding: 1 initializer { he_normal { } } }",
      "residual { layers { batch_norm { epsilon: 1e-05 momentum: 0.5 } } }",
      "max_pool { kernel: 2 stride: 2 padding: 0 }",
      "average_pool { }",
      "dense { units: 10 initializer { he_normal { } } }",
  };
  for (int i = 0; i < 5; ++i) EXPECT_EQ(job.model().layers(i).ShortDebugString(), layers[i]);
  EXPECT_EQ(job.optimizer().ShortDebugString(), "adam { learning_rate: 0.5 }");
}

TEST(WithDefaultsTest, TheResultIsAValidJobThatHasThemAll) {
  const v1::Job once = WithDefaults(ParseJob(kJob, "tiny").value());
  EXPECT_TRUE(ValidateJob(once).ok()) << ValidateJob(once);
  EXPECT_EQ(WithDefaults(once).DebugString(), once.DebugString());
}

}  // namespace
}  // namespace ballast
