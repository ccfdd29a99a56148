// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

// cuDNN's headers include the runtime under this name, and mention this type.
using cudaGraph_t = struct CUgraph_st*;
