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
#include "worker/device/arriving_rows.h"
#include "worker/device/device_types.h"
#include "worker/device/embedding_operations.h"
#include "worker/device/host_memory.h"
#include "worker/device/image_operations.h"
#include "worker/device/normalization_operations.h"
#include "worker/device/segment.h"
#include "worker/device/vector_operations.h"

namespace ballast {

class TimelineRecorder;

// Does the arithmetic of layers on matrices in its own memory. It knows no layer and no model.
//
// Activations and their gradients have elements of activation_type(). Parameters, their gradients, statistics, labels
// and totals are floats. All activation matrices of one operation have the same type; each matrix of a product may
// have its own. Results are computed in fp32 and rounded when they are stored.
//
// Operations (the methods from Multiply on, and all inherited ones) are issued in order and may still run when the
// call returns. Their matrices and buffers belong to this device, fit their buffers and each other (otherwise the
// device aborts: a bug of the caller), may have no rows, and overlap only if an operation allows it. The same
// operations on the same values give the same bits. If a computation fails, the device keeps the first error and
// returns it from every later Download and Synchronize.
//
// Thread safety: one thread issues operations. Other threads may Upload and Download buffers that no operation issued
// meanwhile touches: each buffer from one thread at a time, except that several threads may Download the same one.
class Device : public EmbeddingOperations,
               public ImageOperations,
               public NormalizationOperations,
               public VectorOperations {
 public:
  virtual ~Device() = default;

  // Kind, library and threads, for people.
  virtual std::string Describe() const = 0;

  // Sets the precision of later operations; call it before any operation. Returns the precision used, which may be
  // more exact: a device without TF32 computes in FP32. UNIMPLEMENTED if the device supports neither; the message
  // says what to do.
  virtual absl::StatusOr<Precision> SetPrecision(Precision precision) = 0;
  // Returns whether SetPrecision accepts `precision`, possibly by using a more exact one.
  virtual bool Takes(Precision precision) const = 0;
  virtual DeviceMemory Memory() const = 0;
  // The most bytes that buffers and operations held at once since the device was opened, or since ResetPeak. A GPU's
  // libraries and context hold more, outside of the pool that counts. 0 if the device does not respond.
  virtual int64_t PeakBytes() const = 0;
  // Counts the peak from the bytes held now.
  virtual void ResetPeak() = 0;
  // A 16-bit type if the precision has 16 bits.
  virtual ElementType activation_type() const = 0;
  // Zeroed memory for floats, or for elements of activation_type(). RESOURCE_EXHAUSTED if memory is short.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t floats) = 0;
  virtual absl::StatusOr<std::unique_ptr<Buffer>> AllocateActivations(int64_t elements) = 0;
  // Like Allocate, for a gradient that is pushed from where it is: if possible in memory that servers can read.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> AllocateGradient(int64_t floats) { return Allocate(floats); }
  // Allocates the workspace that convolutions of these shapes need, with up to `examples` examples. Other convolutions
  // may allocate when they are issued. RESOURCE_EXHAUSTED if memory is short.
  virtual absl::Status ReserveWorkspace(absl::Span<const ConvShape> shapes, int64_t examples) = 0;
  // Zeroed host memory, which the device must outlive. Copies of floats between it and this device are the fastest if
  // the device pins it; it does so up to a limit of its own.
  virtual std::unique_ptr<HostMemory> AllocateHost(int64_t floats) = 0;
  // Lets this device read and write host memory of another owner by itself, such as memory shared with a server, until
  // the result is destroyed: before the memory is unmapped, and while no copy uses it. Null if that is useless or
  // refused; copies are then only slower. Any thread may call it.
  virtual std::unique_ptr<HostRegistration> RegisterHost(absl::Span<char> memory) = 0;
  // Waits for the operations issued on `to` so far, then copies values to the elements from `offset` on, rounded if
  // those have 16 bits. The caller may reuse `values` on return. OUT_OF_RANGE past the end.
  virtual absl::Status Upload(absl::Span<const float> values, Buffer& to, int64_t offset) = 0;
  // Waits for the operations issued on `from` so far, then copies. OUT_OF_RANGE past the end.
  virtual absl::Status Download(const Buffer& from, int64_t offset, absl::Span<float> values) = 0;
  // Downloads all of these, and waits for the device once if they are small.
  virtual absl::Status DownloadAll(absl::Span<const HostCopy> copies) = 0;
  // y = x, a matrix of device `from` with as many elements, after all operations issued on both, without stopping at
  // the host. Returns false and does nothing if this device cannot reach that memory or the element types differ.
  // Operations that another thread issues on `from` meanwhile must not touch x.
  virtual bool CopyFrom(Device& from, Matrix x, Matrix y) = 0;
  // Waits until all issued operations are done.
  virtual absl::Status Synchronize() = 0;
  // Announces that results issued so far will be copied during later operations: an Upload or Download of their
  // buffers then waits for no later operation; without a mark it may. Call it on the thread that issues operations.
  virtual void Mark() = 0;
  // Issues the operations of `segment`: calls `issue` once or twice, or replays the operations issued before for an
  // equal segment. `issue` only issues operations: it does not copy to or from the host, call Mark or allocate.
  virtual void Repeat(const Segment& segment, absl::FunctionRef<void()> issue) = 0;
  // From now on adds to `timeline` when each segment ran by the device's own clock, if it has one. Null ends that: it
  // waits for the segments issued so far and adds them. Call it on the thread that issues operations.
  virtual void Record(TimelineRecorder* timeline) = 0;

  // c = alpha * a b + beta * c; c is not read if beta is 0.
  virtual void Multiply(const Factor& a, const Factor& b, float alpha, float beta, Matrix c) = 0;
  // c = a b by rows: a row has the bits that Multiply gives it, once it is computed. Null if the device cannot do that
  // for this product; c is then unchanged. The result no longer reads a and b, and other operations may come between
  // its own.
  virtual std::unique_ptr<RowsOfProduct> MultiplyByRows(const Factor&, const Factor&, Matrix) { return nullptr; }
  // c = a b, where b is stored transposed and its rows there come while they are used: takes all that `rows` has, and
  // gives c the bits of Multiply. Returns false, and takes none, if the device cannot do that for this product.
  virtual bool MultiplyAsRowsCome(const Factor&, const Factor&, ArrivingRows&, Matrix) { return false; }
  // c = f(a b + bias), with bias[j] on column j, and without f if it is not set. One pass over c if the device can.
  virtual void MultiplyBiasActivate(const Factor& a, const Factor& b, const Buffer& bias, std::optional<Activation> f,
                                    Matrix c) = 0;
  // Adds bias[j] to column j of x.
  virtual void AddBias(const Buffer& bias, Matrix x) = 0;
  // sums[j] = sum over the rows of x[i][j]: the gradient of a bias.
  virtual void SumRows(Matrix x, Buffer& sums) = 0;
  // y = f(x). y may be x.
  virtual void Activate(Activation f, Matrix x, Matrix y) = 0;
  // dx = dy * f'(x). dx may be dy. For kRelu, x may also be the output of Activate.
  virtual void ActivateBackward(Activation f, Matrix x, Matrix dy, Matrix dx) = 0;
  // y[i] = x[i] / (1 - rate) with probability 1 - rate, otherwise 0; rate in [0, 1). The forward pass calls it on x,
  // the backward pass on dy with the same key. y may be x.
  virtual void Dropout(float rate, const DropoutKey& key, Matrix x, Matrix y) = 0;
  // totals[kLossSum] = sum of the losses of the rows; totals[kCorrect] = number of rows whose largest output (the
  // first of equal ones) is the label, or 0 for a mean squared error. If `gradient` is not null, its matrix becomes
  // its scale times the derivative of the mean loss over the rows with respect to the outputs; it may be the outputs.
  // Labels are classes 0 to columns - 1. A mean squared error has one output column, and its labels are any numbers.
  // A sigmoid cross-entropy has one output column, the logit x of label 1, and labels 0 and 1. Its loss is
  // log(1 + exp(x)) - label * x, and a row is correct if x > 0 and the label is 1, or neither.
  virtual void Loss(LossFunction f, Matrix outputs, const Buffer& labels, Buffer& totals,
                    const LossGradient* gradient) = 0;
};

}  // namespace ballast
