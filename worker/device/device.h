// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/device/device_types.h"
#include "worker/device/image_operations.h"
#include "worker/device/normalization_operations.h"
#include "worker/device/segment.h"
#include "worker/device/vector_operations.h"

namespace ballast {

// Does the arithmetic of layers on matrices in its own memory. It knows no layer and no model.
//
// Values that layers hand each other, activations and their gradients, have elements of activation_type(); what is
// learnt, its gradients, statistics, labels and totals are floats. Of the matrices of one operation those of
// activations have one type, whichever; a product's have each their own. Results are computed in fp32 and rounded when
// they are stored.
//
// Operations, which are those from Multiply on and all inherited ones, are issued in order and may still run when the
// call returns. Their matrices and buffers come from this device, fit their buffers and each other (a caller's bug
// aborts), may have no rows, and overlap only where an operation says so. The same operations on the same values give
// the same bits. A device that fails while it computes keeps the first error and returns it from every later Download
// and Synchronize. Thread safety: one thread issues operations; beside it others may Upload and Download buffers that
// no operation issued meanwhile touches, each buffer one at a time, but several may Download one.
class Device : public ImageOperations, public NormalizationOperations, public VectorOperations {
 public:
  virtual ~Device() = default;

  // For people: kind, library, threads.
  virtual std::string Describe() const = 0;

  // From now on computes in this, or in what is more exact, which it answers: a device without TF32 computes in FP32.
  // UNIMPLEMENTED where it can do neither; the message says what to do. Before any operation.
  virtual absl::StatusOr<Precision> SetPrecision(Precision precision) = 0;
  // Whether SetPrecision takes it, or what is more exact.
  virtual bool Takes(Precision precision) const = 0;
  virtual DeviceMemory Memory() const = 0;
  // In 16 bits where the precision is that of 16 bits.
  virtual ElementType activation_type() const = 0;
  // Memory of zeros: floats, or of activation_type(). RESOURCE_EXHAUSTED where there is not enough.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t floats) = 0;
  virtual absl::StatusOr<std::unique_ptr<Buffer>> AllocateActivations(int64_t elements) = 0;
  // Waits for the operations on `to` that were issued before, then copies values to the elements from `offset` on; they
  // may be reused on return. In 16 bits they are rounded on their way. OUT_OF_RANGE past the end.
  virtual absl::Status Upload(absl::Span<const float> values, Buffer& to, int64_t offset) = 0;
  // Waits for the operations on `from` that were issued before, then copies. OUT_OF_RANGE past the end.
  virtual absl::Status Download(const Buffer& from, int64_t offset, absl::Span<float> values) = 0;
  // y = x of another device, of as many elements, after what was issued on both, without a stop at the host; false,
  // and nothing is done, where this device cannot reach that one's memory or the elements' types differ. What another
  // thread issues on `from` meanwhile may not touch x.
  virtual bool CopyFrom(Device& from, Matrix x, Matrix y) = 0;
  // Waits until everything issued is done.
  virtual absl::Status Synchronize() = 0;
  // Says that results of what was issued so far will be copied while more is computed: an Upload or Download of their
  // buffers then waits for nothing that is issued later. Without it they may. From the thread that issues operations.
  virtual void Mark() = 0;
  // Issues the segment's operations: by calling `issue`, once or twice, or without it, as they were issued for an equal
  // segment before. `issue` issues operations and nothing else: no copy to or from the host, no mark, no memory.
  virtual void Repeat(const Segment& segment, absl::FunctionRef<void()> issue) = 0;

  // c = alpha * a b + beta * c; c is not read where beta is 0.
  virtual void Multiply(const Factor& a, const Factor& b, float alpha, float beta, Matrix c) = 0;
  // c = f(a b + bias), bias[j] on column j; without f where it is not set. One pass over c where the device can.
  virtual void MultiplyBiasActivate(const Factor& a, const Factor& b, const Buffer& bias, std::optional<Activation> f,
                                    Matrix c) = 0;
  // Adds bias[j] to column j of x.
  virtual void AddBias(const Buffer& bias, Matrix x) = 0;
  // sums[j] = sum over the rows of x[i][j]: a bias's gradient.
  virtual void SumRows(Matrix x, Buffer& sums) = 0;
  // y = f(x). y may be x.
  virtual void Activate(Activation f, Matrix x, Matrix y) = 0;
  // dx = dy * f'(x). dx may be dy. For kRelu, x may be what Activate gave.
  virtual void ActivateBackward(Activation f, Matrix x, Matrix dy, Matrix dx) = 0;
  // y[i] = x[i] / (1 - rate) with probability 1 - rate, else 0; rate in [0, 1). Forward of x, and
  // with the same key backward of dy. y may be x.
  virtual void Dropout(float rate, const DropoutKey& key, Matrix x, Matrix y) = 0;
  // totals[kLossSum] = sum of the rows' losses; totals[kCorrect] = rows whose largest output, the first of equals, is
  // the label (0 for a mean squared error). Where `gradient` is not null, its matrix becomes its scale times the
  // derivative of the mean loss over the rows by the outputs, and may be the outputs. Labels are classes 0 to
  // columns - 1, or for a mean squared error, whose outputs have one column, any number.
  virtual void Loss(LossFunction f, Matrix outputs, const Buffer& labels, Buffer& totals,
                    const LossGradient* gradient) = 0;
};

}  // namespace ballast
