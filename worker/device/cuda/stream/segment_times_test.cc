// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/stream/segment_times.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/cuda/stream/stream_order.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Records steps 1 and 2. The timeline's clock stands still, so only the GPU's time passes.
class SegmentTimesTest : public ::testing::Test {
 protected:
  SegmentTimesTest() {
    emulator::Reset({});
    order_ = *StreamOrder::Create();
    timeline_.BeginStep(1);
    order_->times().Record(&timeline_);
  }
  ~SegmentTimesTest() override {
    order_.reset();
    EXPECT_EQ(emulator::Count().events, 0);
  }

  // Issues an operation that takes this long.
  void Run(float milliseconds) {
    ASSERT_TRUE(order_->BeforeOperation({}).ok());
    emulator::Enqueue("run", order_->compute(), [milliseconds] { emulator::PassTime(milliseconds); });
    order_->AfterOperation({});
  }

  void RunSegment(const char* name, float milliseconds) {
    order_->times().Open(name);
    Run(milliseconds);
    order_->times().Close();
  }

  // Ends the recording; returns "name step begin+length" of each span, in milliseconds from the anchor.
  std::vector<std::string> Spans() {
    order_->times().Record(nullptr);
    const TimelineRecorder::Recording recording = timeline_.Copy();
    std::vector<std::string> spans;
    for (const TimelineSpan& span : recording.spans) {
      EXPECT_EQ(span.row, TimelineRow::kGpu);
      spans.push_back(absl::StrCat(recording.names[span.name], " ", span.step, " ",
                                   absl::ToDoubleMilliseconds(span.begin - absl::UnixEpoch()), "+",
                                   absl::ToDoubleMilliseconds(span.end - span.begin)));
    }
    return spans;
  }

  ManualClock clock_;
  TimelineRecorder timeline_{StepRange{1, 2}, &clock_};
  std::unique_ptr<StreamOrder> order_;
};

TEST_F(SegmentTimesTest, ASegmentLastsAsLongAsItsOperations) {
  order_->times().Open("forward a");
  Run(3);
  Run(4);
  order_->times().Close();
  timeline_.BeginStep(2);
  RunSegment("backward a", 5);
  EXPECT_THAT(Spans(), ElementsAre("forward a 1 0+7", "backward a 2 7+5"));
}

TEST_F(SegmentTimesTest, OperationsBetweenSegmentsBelongToNone) {
  RunSegment("forward a", 3);
  Run(10);
  RunSegment("forward b", 2);
  EXPECT_THAT(Spans(), ElementsAre("forward a 1 0+3", "forward b 1 13+2"));
}

TEST_F(SegmentTimesTest, TheWaitForAnUploadIsNotPartOfIt) {
  BufferUse use;
  emulator::Enqueue("upload", order_->upload(), [] { emulator::PassTime(20); });
  ASSERT_TRUE(order_->AfterUpload(use).ok());
  order_->times().Open("forward a");
  BufferUse* const operands[] = {&use};
  ASSERT_TRUE(order_->BeforeOperation(operands).ok());
  Run(3);
  order_->times().Close();
  EXPECT_THAT(Spans(), ElementsAre("forward a 1 20+3"));
}

TEST_F(SegmentTimesTest, StepsOutsideTheTimelineLeaveNoSpansAndNoEvents) {
  timeline_.BeginStep(3);
  RunSegment("forward a", 3);
  EXPECT_EQ(emulator::Count().events, 0);
  EXPECT_THAT(Spans(), IsEmpty());
}

TEST_F(SegmentTimesTest, ASegmentWithoutOperationsLeavesNoSpan) {
  order_->times().Open("forward a");
  order_->times().Close();
  EXPECT_THAT(Spans(), IsEmpty());
}

TEST_F(SegmentTimesTest, SegmentsThatEndedAreAddedWithoutWaiting) {
  RunSegment("forward a", 3);
  cudaStreamSynchronize(order_->compute());
  EXPECT_THAT(timeline_.Copy().spans, IsEmpty());
  RunSegment("forward b", 2);
  EXPECT_EQ(timeline_.Copy().spans.size(), 1u);
}

TEST_F(SegmentTimesTest, AnErrorOfCudaEndsTheRecordingAlone) {
  RunSegment("forward a", 3);
  cudaStreamSynchronize(order_->compute());
  emulator::FailCall("cudaEventElapsedTime", cudaErrorInvalidResourceHandle, 0);
  RunSegment("forward b", 2);
  RunSegment("forward c", 2);
  EXPECT_THAT(Spans(), IsEmpty());
}

}  // namespace
}  // namespace ballast
