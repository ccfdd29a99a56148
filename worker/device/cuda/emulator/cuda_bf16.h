// SPDX-License-Identifier: Apache-2.0
#pragma once

// What cuBLAS's headers mention of it.
struct __nv_bfloat16;
