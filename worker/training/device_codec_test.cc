// SPDX-License-Identifier: Apache-2.0
#include "worker/training/device_codec.h"

#include <gmock/gmock.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/device/testing/queued_device.h"
#include "worker/model/model_fixture.h"
#include "worker/model/parallel/replicated_model.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

// Layer 1 has three weights and a bias; layer 2 has one weight. They are on devices "cpu" and "0" if there are several.
v1::Model TwoLayers(bool devices) {
  return ParseModel(absl::StrCat("layers { dense { units: 1 } ", devices ? "device: 'cpu'" : "",
                                 " } layers { dense { units: 1 no_bias: true } ", devices ? "device: '0'" : "",
                                 " } loss { mean_squared_error {} }"));
}
constexpr int64_t kFeatures = 3;

v1::Codec Codec16(v1::Encoding gradients, v1::Encoding values) {
  v1::Codec codec;
  codec.set_gradients(gradients);
  codec.set_values(values);
  return codec;
}

// A model on a device whose memory the host cannot address, and which can be told to fail.
class DeviceCodecTest : public ::testing::Test {
 protected:
  void Open(const v1::Codec& config) {
    model_ = Model::Create(TwoLayers(false), kFeatures, 1, 4, device_.get()).value();
    codec_ = DeviceCodec::Create(model_.get(), config, nullptr).value();
  }

  const std::unique_ptr<QueuedDevice> device_ = CreateQueuedDevice();
  std::unique_ptr<Model> model_;
  std::unique_ptr<DeviceCodec> codec_;
};

// The output is 0 and the label -1/2, so the gradient of the second layer's weight equals the first layer's output,
// 1 + 2^-8, which needs one bit more than bf16 has.
TEST_F(DeviceCodecTest, GradientComesDownAsAPayloadOfItsEncoding) {
  Open(Codec16(v1::ENCODING_BF16, v1::ENCODING_FP32));
  ASSERT_TRUE(model_->SetParameter(1, {1 + 0x1p-8f}).ok());
  NoHooks hooks;
  ASSERT_TRUE(model_->Train({.features = {1, 1, 1}, .labels = {-0.5f}, .examples = 1}, hooks).ok());
  float exact = 0;
  ASSERT_TRUE(model_->GetGradient(2, absl::MakeSpan(&exact, 1)).ok());
  EXPECT_EQ(exact, 1 + 0x1p-8f);
  codec_->Encode(2);
  ASSERT_TRUE(device_->DownloadAll({codec_->Encoded(2)}).ok());
  const EncodedElements<const char> gradient = codec_->gradient(2);
  EXPECT_EQ(gradient.encoding, v1::ENCODING_BF16);
  // 1: ties round to even.
  EXPECT_EQ(std::string(gradient.bytes.data(), gradient.bytes.size()), "\x80\x3f");
}

// Three elements, so that the last float holds only one of them.
TEST_F(DeviceCodecTest, PayloadOfValuesBecomesTheParameter) {
  Open(Codec16(v1::ENCODING_FP32, v1::ENCODING_FP16));
  const EncodedElements<char> values = codec_->values(0);
  EXPECT_EQ(values.encoding, v1::ENCODING_FP16);
  ASSERT_EQ(values.bytes.size(), 6u);
  // The values 1, -2 and 2^-24.
  std::string("\x00\x3c\x00\xc0\x01\x00", 6).copy(values.bytes.data(), 6);
  ASSERT_TRUE(codec_->Upload(0).ok());
  codec_->Decode(0);
  std::vector<float> got(3);
  ASSERT_TRUE(model_->GetParameter(0, absl::MakeSpan(got)).ok());
  EXPECT_THAT(got, ElementsAre(1, -2, 0x1p-24f));
}

TEST_F(DeviceCodecTest, TakesOnlyTheWayThatIsIn16Bits) {
  Open(Codec16(v1::ENCODING_BF16, v1::ENCODING_FP32));
  EXPECT_FALSE(codec_->gradient(0).empty());
  EXPECT_TRUE(codec_->values(0).empty());
  Open(Codec16(v1::ENCODING_SIGN, v1::ENCODING_FP16));
  EXPECT_TRUE(codec_->gradient(0).empty());
  EXPECT_FALSE(codec_->values(0).empty());
}

// Tensors of 3, 1 and 1 elements take 2, 1 and 1 floats of 4 bytes, once on the device and twice on the host.
TEST_F(DeviceCodecTest, HasRoomOnceOnTheDeviceAndForEachWayOnTheHost) {
  Open(Codec16(v1::ENCODING_BF16, v1::ENCODING_FP16));
  EXPECT_EQ(codec_->DeviceBytes(), 16);
  EXPECT_EQ(codec_->HostBytes(), 32);
  Open(Codec16(v1::ENCODING_INT8, v1::ENCODING_INT8));
  EXPECT_EQ(codec_->DeviceBytes(), 0);
  EXPECT_EQ(codec_->HostBytes(), 0);
}

TEST_F(DeviceCodecTest, FailureOfACopyNamesTheDevice) {
  Open(Codec16(v1::ENCODING_BF16, v1::ENCODING_BF16));
  device_->Fail(absl::UnavailableError("the GPU is lost"));
  EXPECT_EQ(codec_->Upload(0), absl::UnavailableError("device cpu: the GPU is lost"));
}

// The client encodes such tensors in less time than a copy would take.
TEST(DeviceCodecDevicesTest, LeavesToTheClientWhatTheHostCanAddress) {
  const std::unique_ptr<Device> cpu = CreateCpuDevice(1);
  const std::unique_ptr<QueuedDevice> queued = CreateQueuedDevice();
  const auto model =
      Model::Create(TwoLayers(true),
                    {.features = kFeatures, .max_batch = 4, .devices = {{"cpu", cpu.get()}, {"0", queued.get()}}})
          .value();
  const auto codec = DeviceCodec::Create(model.get(), Codec16(v1::ENCODING_BF16, v1::ENCODING_BF16), nullptr).value();
  EXPECT_TRUE(codec->gradient(0).empty());
  EXPECT_TRUE(codec->values(0).empty());
  EXPECT_FALSE(codec->gradient(2).empty());
  EXPECT_FALSE(codec->values(2).empty());
}

TEST(DeviceCodecDevicesTest, OfReplicasTakesTheGradients) {
  const std::unique_ptr<QueuedDevice> first = CreateQueuedDevice(), second = CreateQueuedDevice();
  const auto model = ReplicatedModel::Create(
                         TwoLayers(false),
                         {.features = kFeatures, .max_batch = 4, .devices = {{"0", first.get()}, {"1", second.get()}}})
                         .value();
  const auto codec = DeviceCodec::Create(model.get(), Codec16(v1::ENCODING_BF16, v1::ENCODING_BF16), nullptr).value();
  EXPECT_FALSE(codec->gradient(0).empty());
  EXPECT_TRUE(codec->values(0).empty());
}

// The model takes all memory except 4 KiB.
TEST(DeviceCodecDevicesTest, DeviceWithoutRoomForItIsNamedWithWhatWouldFit) {
  const v1::Model config = ParseModel(
      "layers { dense { units: 4096 no_bias: true } } layers { dense { units: 1 no_bias: true } }"
      "loss { mean_squared_error {} }");
  const std::unique_ptr<QueuedDevice> roomy = CreateQueuedDevice();
  const int64_t before = roomy->Memory().free;
  const auto measured = Model::Create(config, kFeatures, 1, 1, roomy.get()).value();
  const std::unique_ptr<QueuedDevice> device = CreateQueuedDevice(before - roomy->Memory().free + 4096);
  const auto model = Model::Create(config, kFeatures, 1, 1, device.get()).value();
  const absl::Status status =
      DeviceCodec::Create(model.get(), Codec16(v1::ENCODING_BF16, v1::ENCODING_BF16), nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              StartsWith("device cpu: no memory for the 16-bit copy of \"dense1/weight\", want "
                         "codec fp32 or a smaller batch: "));
}

}  // namespace
}  // namespace ballast
