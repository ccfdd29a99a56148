// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/memory/half_copies.h"

#include <gmock/gmock.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/cuda/kernels/half_math.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

class HalfCopiesTest : public ::testing::Test {
 protected:
  HalfCopiesTest() {
    emulator::Reset({.memory_bytes = size_t{1} << 20});
    stream_ = *MakeStream();
    memory_ = std::make_unique<MemoryPool>(*MemoryPool::Create(0, stream_.get()));
    halves_ = std::make_unique<HalfCopies>(memory_.get());
  }

  void TearDown() override {
    for (const Scratch& buffer : buffers_) halves_->Remove(buffer.floats());
    buffers_.clear();
    halves_.reset();
    memory_.reset();
    stream_.reset();
    EXPECT_EQ(emulator::Count().device_bytes, 0);
  }

  // GPU memory, which the emulator lets the test write directly.
  Scratch Make(const std::vector<float>& values) {
    Scratch made = *Scratch::Make(memory_.get(), values.size() * sizeof(float));
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    std::copy(values.begin(), values.end(), made.floats());
    return made;
  }

  // Memory that is registered as a buffer until the end of the test.
  const Scratch& MakeBuffer(const std::vector<float>& values) {
    buffers_.push_back(Make(values));
    halves_->Add(buffers_.back().floats());
    return buffers_.back();
  }

  HalfCopies::Copy Get(const Scratch& buffer, int64_t elements) {
    return *halves_->Get(stream_.get(), HalfType::kBf16, buffer.floats(), elements);
  }

  std::vector<float> Values(const HalfCopies::Copy& copy, int64_t elements) {
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    std::vector<float> values;
    for (int64_t i = 0; i < elements; ++i) values.push_back(FromBf16(copy.data()[i]));
    return values;
  }

  Stream stream_;
  std::unique_ptr<MemoryPool> memory_;
  std::unique_ptr<HalfCopies> halves_;
  std::deque<Scratch> buffers_;
};

TEST_F(HalfCopiesTest, ABuffersCopyIsMadeOnceUntilTheBufferIsWritten) {
  const Scratch& buffer = MakeBuffer({1.0f, 2.0f});
  const HalfCopies::Copy first = Get(buffer, 2);
  EXPECT_THAT(Values(first, 2), ElementsAre(1.0f, 2.0f));
  EXPECT_EQ(Get(buffer, 2).data(), first.data());
  EXPECT_EQ(Get(buffer, 1).data(), first.data());
  buffer.floats()[0] = 5.0f;
  halves_->Written(buffer.floats());
  EXPECT_THAT(Values(Get(buffer, 2), 2), ElementsAre(5.0f, 2.0f));
}

// The buffer holds other values than the halves, to show which are used.
TEST_F(HalfCopiesTest, AdoptedHalvesAreTheCopyUntilTheBufferIsWritten) {
  const Scratch& buffer = MakeBuffer({1.0f, 2.0f});
  const HalfCopies::Copy first = Get(buffer, 2);
  const Scratch halves = Make({0.0f});
  auto* const values = static_cast<uint16_t*>(halves.bytes());
  values[0] = ToBf16(3.0f);
  values[1] = ToBf16(4.0f);
  halves_->Written(buffer.floats());
  ASSERT_TRUE(halves_->Adopt(stream_.get(), HalfType::kBf16, values, buffer.floats(), 2).ok());
  EXPECT_EQ(Get(buffer, 2).data(), first.data());
  EXPECT_THAT(Values(Get(buffer, 2), 2), ElementsAre(3.0f, 4.0f));
  halves_->Written(buffer.floats());
  EXPECT_THAT(Values(Get(buffer, 2), 2), ElementsAre(1.0f, 2.0f));
}

TEST_F(HalfCopiesTest, ABufferThatHadNoCopyAdoptsNone) {
  const Scratch& buffer = MakeBuffer({1.0f, 2.0f});
  const Scratch halves = Make({0.0f});
  const int64_t before = emulator::Count().device_bytes;
  ASSERT_TRUE(
      halves_->Adopt(stream_.get(), HalfType::kBf16, static_cast<uint16_t*>(halves.bytes()), buffer.floats(), 2).ok());
  EXPECT_EQ(emulator::Count().device_bytes, before);
  EXPECT_THAT(Values(Get(buffer, 2), 2), ElementsAre(1.0f, 2.0f));
}

TEST_F(HalfCopiesTest, MoreElementsThanTheCopyHasAreCopiedAnew) {
  const Scratch& buffer = MakeBuffer({1.0f, 2.0f, 3.0f});
  Get(buffer, 1);
  EXPECT_THAT(Values(Get(buffer, 3), 3), ElementsAre(1.0f, 2.0f, 3.0f));
}

TEST_F(HalfCopiesTest, AnotherTypeIsCopiedAnew) {
  const Scratch& buffer = MakeBuffer({1.0f});
  Get(buffer, 1);
  const HalfCopies::Copy fp16 = *halves_->Get(stream_.get(), HalfType::kFp16, buffer.floats(), 1);
  EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  EXPECT_EQ(FromFp16(*fp16.data()), 1.0f);
}

TEST_F(HalfCopiesTest, OfMemoryThatIsNoBuffersNothingIsKept) {
  const Scratch scratch = Make({1.0f});
  Get(scratch, 1);
  scratch.floats()[0] = 2.0f;
  EXPECT_THAT(Values(Get(scratch, 1), 1), ElementsAre(2.0f));
}

TEST_F(HalfCopiesTest, OfABufferThatWentNothingIsKept) {
  const Scratch& buffer = MakeBuffer({1.0f});
  Get(buffer, 1);
  halves_->Remove(buffer.floats());
  // Registers another buffer at the same address.
  halves_->Add(buffer.floats());
  buffer.floats()[0] = 2.0f;
  EXPECT_THAT(Values(Get(buffer, 1), 1), ElementsAre(2.0f));
}

TEST_F(HalfCopiesTest, ACopyInUseOutlivesItsBuffersNextValues) {
  const Scratch& buffer = MakeBuffer({1.0f});
  const HalfCopies::Copy copy = Get(buffer, 1);
  EXPECT_THAT(Values(copy, 1), ElementsAre(1.0f));
  halves_->Written(buffer.floats());
  halves_->Drop();
  EXPECT_THAT(Values(copy, 1), ElementsAre(1.0f));
}

TEST_F(HalfCopiesTest, CopiesGoWhenMemoryIsShort) {
  // 512 KiB of values and 256 KiB of copies leave 256 KiB.
  const Scratch& buffer = MakeBuffer(std::vector<float>(128 << 10, 1.0f));
  Get(buffer, 128 << 10);
  const absl::StatusOr<void*> more = memory_->Take(400 << 10);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_TRUE(memory_->GiveBack(*more).ok());
  EXPECT_THAT(Values(Get(buffer, 128 << 10), 1), ElementsAre(1.0f));
}

// After any operation of the device that writes a buffer, products use the new values.
class BufferWriteTest : public ::testing::TestWithParam<emulator::Schedule> {
 protected:
  void SetUp() override {
    emulator::Reset({.schedule = GetParam()});
    device_ = *OpenCudaDevice({});
    ASSERT_TRUE(device_->SetPrecision(Precision::kBf16).ok());
    identity_ = Make({1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1});
    first_ = Make({.5f, -1, 2, 3, 1, .25f, -2, 4, 5, 1, 1, -.5f, 2, 2, -3, 1});
    second_ = Make({3, 1, -2, 1, 0, 2, 5, -1, .5f, 1, 2, 4, 1, -3, 2, .25f});
    a_ = Square(first_);
    b_ = Square(second_);
    row_ = Make({.5f, 1, 2, 1});
    for (std::unique_ptr<Buffer>* buffer : {&labels_, &small_, &saved_mean_, &saved_deviation_}) {
      *buffer = Make({0, 1, 0, 1});
    }
    running_variance_ = Make({1, 1, 1, 1});
    result_ = Make(std::vector<float>(16));
  }

  std::unique_ptr<Buffer> Make(const std::vector<float>& values) {
    std::unique_ptr<Buffer> buffer = *device_->Allocate(values.size());
    EXPECT_TRUE(device_->Upload(values, *buffer, 0).ok());
    return buffer;
  }

  static Matrix Square(const std::unique_ptr<Buffer>& buffer) { return {buffer.get(), 4, 4}; }

  std::vector<float> Get(const Buffer& buffer) {
    std::vector<float> values(16);
    EXPECT_TRUE(device_->Download(buffer, 0, absl::MakeSpan(values)).ok());
    return values;
  }

  // `write` changes at least the buffer's first row. Its product with the identity, the rounded row, is checked
  // before and after.
  void Check(const std::string& what, const std::function<void(Matrix)>& write) {
    SCOPED_TRACE(what);
    const std::unique_ptr<Buffer> target = Make(std::vector<float>(16, 1.0f / 64));
    const auto product = [&] {
      device_->Multiply({Square(target)}, {Square(identity_)}, 1.0f, 0.0f, Square(result_));
      return Get(*result_);
    };
    const std::vector<float> before = product();
    write(Square(target));
    const std::vector<float> after = product();
    EXPECT_NE(before, after);
    std::vector<float> want;
    for (const float value : Get(*target)) want.push_back(FromBf16(ToBf16(value)));
    EXPECT_EQ(after, want);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Buffer> identity_, first_, second_, row_, labels_, small_, saved_mean_, saved_deviation_;
  std::unique_ptr<Buffer> running_variance_, result_;
  Matrix a_, b_;
};

INSTANTIATE_TEST_SUITE_P(Schedules, BufferWriteTest,
                         ::testing::Values(emulator::Schedule::kLate, emulator::Schedule::kAtOnce,
                                           emulator::Schedule::kRandom));

TEST_P(BufferWriteTest, Uploads) {
  Check("upload", [&](Matrix t) { EXPECT_TRUE(device_->Upload({7.0f}, *t.buffer, 2).ok()); });
}

TEST_P(BufferWriteTest, Products) {
  Check("product", [&](Matrix t) { device_->Multiply({a_}, {b_}, 1.0f, 0.0f, t); });
  Check("product added", [&](Matrix t) { device_->Multiply({a_}, {b_}, 1.0f, 1.0f, t); });
  Check("dense", [&](Matrix t) { device_->MultiplyBiasActivate({a_}, {b_}, *row_, Activation::kTanh, t); });
  Check("add bias", [&](Matrix t) { device_->AddBias(*row_, t); });
  Check("sum rows", [&](Matrix t) { device_->SumRows(a_, *t.buffer); });
}

TEST_P(BufferWriteTest, Activations) {
  Check("activate", [&](Matrix t) { device_->Activate(Activation::kRelu, a_, t); });
  Check("activate in place", [&](Matrix t) { device_->Activate(Activation::kGelu, t, t); });
  Check("activate backward", [&](Matrix t) { device_->ActivateBackward(Activation::kRelu, a_, b_, t); });
  Check("dropout", [&](Matrix t) { device_->Dropout(0.5f, {1, 2, 3}, a_, t); });
  Check("dropout of nothing", [&](Matrix t) { device_->Dropout(0.0f, {1, 2, 3}, a_, t); });
  Check("loss", [&](Matrix t) {
    const LossGradient gradient{t};
    device_->Loss(LossFunction::kSoftmaxCrossEntropy, a_, *labels_, *small_, &gradient);
  });
  Check("loss totals",
        [&](Matrix t) { device_->Loss(LossFunction::kSoftmaxCrossEntropy, a_, *labels_, *t.buffer, nullptr); });
}

TEST_P(BufferWriteTest, Vectors) {
  const std::vector<int64_t> rows = {3, 1, 0, 1};
  const std::unique_ptr<Buffer> halves = Make(std::vector<float>(8));
  device_->Narrow(HalfType::kBf16, a_, *halves);
  Check("fill", [&](Matrix t) { device_->Fill(3.0f, t); });
  Check("widen", [&](Matrix t) { device_->Widen(HalfType::kBf16, *halves, t); });
  Check("widen a part", [&](Matrix t) { device_->Widen(HalfType::kBf16, *halves, {t.buffer, 2, 4}); });
  Check("widen another type", [&](Matrix t) { device_->Widen(HalfType::kFp16, *halves, t); });
  Check("copy", [&](Matrix t) { device_->Copy(a_, t); });
  Check("scale", [&](Matrix t) { device_->Scale(3.0f, t); });
  Check("axpy", [&](Matrix t) { device_->Axpy(3.0f, a_, t); });
  Check("add", [&](Matrix t) { device_->Add(a_, b_, t); });
  Check("gather", [&](Matrix t) { device_->GatherRows(a_, rows, t); });
  Check("scatter", [&](Matrix t) { device_->ScatterAddRows(a_, rows, t); });
}

// The first round has no copy to replace, the second is captured, the others launch the graph.
TEST_P(BufferWriteTest, AGraphMultipliesTheValuesThatWereWidenedLast) {
  const std::unique_ptr<Buffer> halves = Make(std::vector<float>(8)), target = Make(std::vector<float>(16));
  for (int round = 1; round <= 4; ++round) {
    device_->Fill(static_cast<float>(round), a_);
    device_->Narrow(HalfType::kBf16, a_, *halves);
    device_->Widen(HalfType::kBf16, *halves, Square(target));
    device_->Repeat({{1, 2, 3, 4}, 0, 0},
                    [&] { device_->Multiply({Square(target)}, {Square(identity_)}, 1.0f, 0.0f, Square(result_)); });
    EXPECT_EQ(Get(*result_), std::vector<float>(16, static_cast<float>(round)));
  }
}

TEST_P(BufferWriteTest, Images) {
  // Each row is one image of 2 x 2 pixels and one channel; windows are 1 x 1.
  const ConvShape convolution = {{2, 2, 1}, {}, 1};
  const PoolShape pool = {{2, 2, 1}, {}};
  Check("convolve", [&](Matrix t) { device_->Convolve(convolution, a_, *row_, nullptr, t); });
  Check("convolve backward data", [&](Matrix t) { device_->ConvolveBackwardData(convolution, a_, *row_, t); });
  Check("convolve backward filters",
        [&](Matrix t) { device_->ConvolveBackwardFilters(convolution, a_, b_, *t.buffer, nullptr); });
  Check("convolve backward bias",
        [&](Matrix t) { device_->ConvolveBackwardFilters(convolution, a_, b_, *small_, t.buffer); });
  Check("max pool", [&](Matrix t) { device_->MaxPool(pool, a_, nullptr, t); });
  Check("max pool's positions", [&](Matrix t) { device_->MaxPool(pool, a_, t.buffer, Square(result_)); });
  Check("max pool backward", [&](Matrix t) { device_->MaxPoolBackward(pool, *row_, b_, t); });
  Check("average pool", [&](Matrix t) { device_->AveragePool(pool, a_, t); });
  Check("average pool backward", [&](Matrix t) { device_->AveragePoolBackward(pool, b_, t); });
}

TEST_P(BufferWriteTest, Normalisations) {
  const Affine affine = {*row_, *small_};
  const BatchNormRates rates = {1e-5f, 0.5f};
  const SavedStatistics saved = {*saved_mean_, *saved_deviation_};
  const ColumnStatistics running = {*small_, *running_variance_};
  Check("batch norm", [&](Matrix t) { device_->BatchNorm(rates, a_, affine, saved, running, t); });
  Check("batch norm's mean", [&](Matrix t) {
    device_->BatchNorm(rates, a_, affine, {*t.buffer, *saved_deviation_}, running, Square(result_));
  });
  Check("batch norm's deviation", [&](Matrix t) {
    device_->BatchNorm(rates, a_, affine, {*saved_mean_, *t.buffer}, running, Square(result_));
  });
  Check("batch norm's running mean", [&](Matrix t) {
    device_->BatchNorm(rates, a_, affine, saved, {*t.buffer, *running_variance_}, Square(result_));
  });
  Check("batch norm's running variance", [&](Matrix t) {
    device_->BatchNorm(rates, a_, affine, saved, {*small_, *t.buffer}, Square(result_));
  });
  Check("batch norm inference", [&](Matrix t) { device_->BatchNormInference(1e-5f, a_, affine, running, t); });
  Check("batch norm backward", [&](Matrix t) {
    device_->BatchNormBackward(a_, b_, affine, saved, {*labels_, *small_}, &t);
  });
  Check("batch norm's scale", [&](Matrix t) {
    device_->BatchNormBackward(a_, b_, affine, saved, {*t.buffer, *small_}, nullptr);
  });
  Check("batch norm's offset", [&](Matrix t) {
    device_->BatchNormBackward(a_, b_, affine, saved, {*labels_, *t.buffer}, nullptr);
  });
  Check("layer norm", [&](Matrix t) { device_->LayerNorm(1e-5f, a_, affine, t); });
  Check("layer norm backward", [&](Matrix t) {
    device_->LayerNormBackward(1e-5f, a_, b_, affine, {*labels_, *small_}, &t);
  });
  Check("layer norm's scale", [&](Matrix t) {
    device_->LayerNormBackward(1e-5f, a_, b_, affine, {*t.buffer, *small_}, nullptr);
  });
  Check("layer norm's offset", [&](Matrix t) {
    device_->LayerNormBackward(1e-5f, a_, b_, affine, {*labels_, *t.buffer}, nullptr);
  });
}

}  // namespace
}  // namespace ballast
