// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda_options.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace ballast {
namespace {

TEST(CudaOptionsTest, WhatWasMeasuredIsKeptInTheUsersCache) {
  setenv("HOME", "/home/someone", 1);
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(CachingCudaOptions().cache_folder, "/home/someone/.cache/ballast/gpu");
  setenv("XDG_CACHE_HOME", "/caches", 1);
  EXPECT_EQ(CachingCudaOptions().cache_folder, "/caches/ballast/gpu");
}

TEST(CudaOptionsTest, WithoutAHomeNothingIsKept) {
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(CachingCudaOptions().cache_folder, "");
}

}  // namespace
}  // namespace ballast
