// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda_options.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace ballast {
namespace {

TEST(CudaOptionsTest, AutotuningIsOnUntilItIsSwitchedOff) {
  unsetenv("BALLAST_GPU_AUTOTUNE");
  EXPECT_TRUE(CudaOptionsFromEnvironment().autotune);
  setenv("BALLAST_GPU_AUTOTUNE", "off", 1);
  EXPECT_FALSE(CudaOptionsFromEnvironment().autotune);
  setenv("BALLAST_GPU_AUTOTUNE", "on", 1);
  EXPECT_TRUE(CudaOptionsFromEnvironment().autotune);
}

TEST(CudaOptionsTest, WhatWasMeasuredIsKeptInTheUsersCache) {
  setenv("HOME", "/home/someone", 1);
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(CudaOptionsFromEnvironment().cache_folder, "/home/someone/.cache/ballast/gpu");
  setenv("XDG_CACHE_HOME", "/caches", 1);
  EXPECT_EQ(CudaOptionsFromEnvironment().cache_folder, "/caches/ballast/gpu");
}

TEST(CudaOptionsTest, WithoutAHomeNothingIsKept) {
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(CudaOptionsFromEnvironment().cache_folder, "");
}

}  // namespace
}  // namespace ballast
