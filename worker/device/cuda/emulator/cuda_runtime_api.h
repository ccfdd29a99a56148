// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

// The name by which cuDNN's headers include the runtime, and what they mention of it.
using cudaGraph_t = struct CUgraph_st*;
