// SPDX-License-Identifier: Apache-2.0
#pragma once

// The type that cuBLAS's headers mention.
struct __half;
