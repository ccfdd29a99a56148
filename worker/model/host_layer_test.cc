// SPDX-License-Identifier: Apache-2.0
// Custom layers that compute in host memory, on devices with and without it.
#include <gmock/gmock.h>

#include "worker/device/testing/queued_device.h"
#include "worker/model/layers/custom_layer.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::StartsWith;

// y = 2x, by loops over host memory.
class Twice : public Layer {
 public:
  explicit Twice(const ImageShape& shape) : shape_(shape) {}

  std::string Describe() const override { return "twice"; }
  ImageShape output() const override { return shape_; }
  LayerTraits traits() const override { return {.on_host = true}; }
  std::vector<Parameter> Parameters() const override { return {}; }
  std::vector<LayerMemory> Memory() const override { return {}; }
  void Forward(const Pass&, Matrix x, Matrix y) const override { Double(x, y); }
  void Backward(const Pass&, Matrix, Matrix dy, const Matrix* dx) const override {
    if (dx != nullptr) Double(dy, *dx);
  }

 private:
  static void Double(Matrix from, Matrix to) {
    for (int64_t i = 0; i < from.elements(); ++i) to.buffer->host()[i] = 2 * from.buffer->host()[i];
  }

  const ImageShape shape_;
};

const CustomLayerType kTwice("twice",
                             [](const LayerSite& site, CustomNumbers&) -> absl::StatusOr<std::unique_ptr<Layer>> {
                               return std::make_unique<Twice>(site.input);
                             });

std::string With(const std::string& layer) {
  return "layers { dense { units: 3 } } layers { " + layer +
         " } layers { dense { units: 2 } device: \"0\" } loss { softmax_cross_entropy {} }";
}

// A worker with a GPU, which computes layers that name no device, and the CPU.
class HostLayerTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Model>> Create(const std::string& layer) const {
    return Model::Create(ParseModel(With(layer)),
                         {.features = 4, .max_batch = 2, .devices = {{"0", gpu_.get()}, {"cpu", cpu_.get()}}});
  }

  const std::unique_ptr<QueuedDevice> gpu_ = CreateQueuedDevice();
  const std::unique_ptr<Device> cpu_ = CreateCpuDevice(1);
};

TEST_F(HostLayerTest, IsRefusedOnADeviceWithoutHostMemory) {
  const absl::Status status = Create("custom { type: 'twice' }").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("layer \"custom1\": computes on the CPU alone, got device "));
}

TEST_F(HostLayerTest, ComputesOnTheCpuBesideAGpu) {
  auto there = Create("custom { type: 'twice' } device: 'cpu'");
  auto reference = Create("residual { layers { dropout {} } }");
  ASSERT_TRUE(there.ok() && reference.ok()) << there.status() << reference.status();
  SetParameters(**there);
  SetParameters(**reference);
  const std::vector<float> features = {1, -2, 3, 0.5, -1, 0, 2, 4}, labels = {0, 1};
  ASSERT_TRUE(TrainOnce(**there, {features, labels, 2}).ok());
  ASSERT_TRUE(TrainOnce(**reference, {features, labels, 2}).ok());
  EXPECT_EQ(Gradients(**there), Gradients(**reference));
}

}  // namespace
}  // namespace ballast
