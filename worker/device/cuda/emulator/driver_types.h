// SPDX-License-Identifier: Apache-2.0
#pragma once

// The name by which cuBLAS's headers include the runtime.
#include <cuda_runtime.h>
