// SPDX-License-Identifier: Apache-2.0
#include "worker/training/run_recorder.h"

#include <gmock/gmock.h>

#include "common/run/safetensors.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

class RunRecorderTest : public ModelFixture {};

// Two examples of two features; the unbiased variance of the second feature is 2.
TEST_F(RunRecorderTest, ASavedModelHasItsWeightsAndWhatItsBatchNormsHaveSeen) {
  const std::unique_ptr<Model> model = CreateRandom(
      "layers { batch_norm { momentum: 0.5 } } layers { dense { units: 1 } } loss { mean_squared_error {} }", 2, 1.0f);
  ASSERT_NE(model, nullptr);
  NoHooks hooks;
  ASSERT_TRUE(model->Train({.features = {4, 1, 4, 3}, .labels = {0, 0}, .examples = 2}, hooks).ok());
  absl::StatusOr<RunRecorder> recorder = RunRecorder::Create({.run_dir = testing::TempDir() + "/saved_model"});
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  ASSERT_TRUE(recorder->Finish(*model, {}, {}, false).ok());

  const absl::StatusOr<Safetensors> saved = ReadSafetensors(recorder->folder().model());
  ASSERT_TRUE(saved.ok()) << saved.status();
  std::map<std::string, std::vector<float>> tensors;
  for (const LoadedTensor& tensor : saved->tensors) tensors[tensor.name] = tensor.values;
  EXPECT_THAT(tensors["batch_norm1/running_mean"], ElementsAre(2, 1));
  EXPECT_THAT(tensors["batch_norm1/running_variance"], ElementsAre(FloatNear(0.5, 1e-6), FloatNear(1.5, 1e-6)));
  const absl::Span<const float> weight = model->HostParameter(2);
  EXPECT_EQ(tensors["dense1/weight"], std::vector<float>(weight.begin(), weight.end()));
  EXPECT_EQ(tensors.size(), 6);
}

}  // namespace
}  // namespace ballast
