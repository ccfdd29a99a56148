// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace ballast {

// Tells malloc to keep the memory of freed messages instead of giving it back to the kernel: each message of some MiB
// would else be mapped and zeroed anew, which costs more than filling it. Call it first in main.
void KeepFreedMemory();

// Bytes of this process's memory that nobody has allocated and that the kernel could have back, about: the rest of what
// is resident, stacks and the program's own data among it.
uint64_t UnusedResidentBytes();

// Gives all freed memory back to the kernel, in whole pages. Takes milliseconds, in which others wait for malloc.
void ReturnFreedMemory();

// Turns off the checks of the order of locks that Abseil makes in Debian's build: gRPC locks often, and each lock pays.
void SkipLockOrderChecks();

// "host, process 4711", for the messages of others.
std::string DescribeThisProcess();

}  // namespace ballast
