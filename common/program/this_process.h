// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ballast {

// Makes malloc keep the memory of freed messages instead of returning it to the kernel: mapping and zeroing each
// message of several MiB again costs more than filling it. Call it first in main.
void KeepFreedMemory();

// Approximate bytes of resident memory that are not allocated and could be returned to the kernel: resident memory
// minus allocations, so stacks and the program's own data are included.
uint64_t UnusedResidentBytes();

// Returns all freed memory to the kernel, in whole pages. Blocks malloc for milliseconds.
void ReturnFreedMemory();

// Turns off the lock-order checks of Abseil in Debian's build: gRPC locks often, and each lock pays for them.
void SkipLockOrderChecks();

// Returns "host, process 4711", which no other process of that host has. In a container, whose processes all begin with
// the same ids, "pod-1, process 1 since 08:15:02.113": a replaced pod keeps the host's name.
std::string DescribeProcess(absl::string_view host, int64_t process, absl::Time since);
// Describes this process, in the same way whenever it is called.
std::string DescribeThisProcess();

// Version of the wire protocol. Raised when an old peer would misunderstand a new one.
inline constexpr uint32_t kProtocolVersion = 1;

// Version of this build, for people.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace ballast
