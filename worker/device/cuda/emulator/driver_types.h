// SPDX-License-Identifier: Apache-2.0
#pragma once

// cuBLAS's headers include the runtime under this name.
#include <cuda_runtime.h>
