// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "ballast/internal/v1/standby_service.pb.h"

namespace ballast {

// A server's stream to its standby, as the journal uses it. The transport is the implementation's matter.
// Thread safety: one thread reads, one writes, any may cancel.
class StandbyStream {
 public:
  virtual ~StandbyStream() = default;

  // Sends a message. `more`: the next one follows at once, so this one may be buffered. False if the stream has ended.
  virtual bool Write(const internal::v1::ReplicateRequest& part, bool more) = 0;

  // Blocks until a response arrives. False if the stream has ended.
  virtual bool Read(internal::v1::ReplicateResponse& response) = 0;

  // Ends the stream: Write and Read return false soon.
  virtual void Cancel() = 0;

  // Returns the error that ended the stream, or OK. Call it once, after the last Read and Write.
  virtual absl::Status Finish() = 0;
};

}  // namespace ballast
