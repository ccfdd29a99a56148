// SPDX-License-Identifier: Apache-2.0
#include "worker/model/testing/gradient_check.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/layers/custom_layer.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// y = slope * x. Its backward pass uses another slope.
class Slope : public Layer {
 public:
  Slope(double forward, double backward, const ImageShape& shape)
      : forward_(forward), backward_(backward), shape_(shape) {}

  std::string Describe() const override { return "slope"; }
  ImageShape output() const override { return shape_; }
  LayerTraits traits() const override { return {}; }
  std::vector<Parameter> Parameters() const override { return {}; }
  std::vector<LayerMemory> Memory() const override { return {}; }
  void Forward(const Pass& pass, Matrix x, Matrix y) const override {
    pass.device.Copy(x, y);
    pass.device.Scale(forward_, y);
  }
  void Backward(const Pass& pass, Matrix, Matrix dy, const Matrix* dx) const override {
    if (dx == nullptr) return;
    pass.device.Copy(dy, *dx);
    pass.device.Scale(backward_, *dx);
  }

 private:
  const float forward_;
  const float backward_;
  const ImageShape shape_;
};

const CustomLayerType kSlope(
    "slope", [](const LayerSite& site, CustomNumbers& numbers) -> absl::StatusOr<std::unique_ptr<Layer>> {
      return std::make_unique<Slope>(*numbers.Read("forward"), *numbers.Read("backward"), site.input);
    });

std::string Around(const std::string& layer) {
  return "layers { dense { units: 4 } } layers { " + layer +
         " } layers { dense { units: 3 } } loss { softmax_cross_entropy {} }";
}

std::string WithSlopes(const std::string& forward, const std::string& backward) {
  return Around("custom { type: 'slope' numbers { key: 'forward' value: " + forward +
                " } numbers { key: 'backward' value: " + backward + " } }");
}

TEST(GradientCheckTest, AcceptsRightGradients) {
  for (const char* layer : {"tanh {}", "gelu {}", "layer_norm {}", "dropout { rate: 0.5 }"}) {
    EXPECT_EQ(CheckGradients(Around(layer), 5).ToString(), "OK") << layer;
  }
  EXPECT_EQ(CheckGradients(WithSlopes("-1.5", "-1.5"), 5).ToString(), "OK");
  EXPECT_EQ(CheckGradients("layers { dense { units: 1 } } loss { mean_squared_error {} }", 2).ToString(), "OK");
}

TEST(GradientCheckTest, NamesAGradientThatDiffers) {
  const absl::Status status = CheckGradients(WithSlopes("1", "1.2"), 5);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), StartsWith("gradient of \"dense1/weight\", element "));
}

TEST(GradientCheckTest, RefusesAModelWhoseGradientsVanish) {
  const absl::Status status = CheckGradients(WithSlopes("0", "0"), 5);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("want more than 0.001 somewhere"));
}

TEST(GradientCheckTest, RefusesWhatIsNoModel) {
  EXPECT_EQ(CheckGradients("layers {", 5).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckGradients(Around("custom { type: 'other' }"), 5).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
