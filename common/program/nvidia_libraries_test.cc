// SPDX-License-Identifier: Apache-2.0
#include "common/program/nvidia_libraries.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::StartsWith;

// A machine whose only Python is a virtual environment.
class NvidiaLibrariesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(site_);
    for (const char* variable : {"CONDA_PREFIX", "PYTHONPATH", "PATH", "HOME"}) unsetenv(variable);
    setenv("VIRTUAL_ENV", root_.c_str(), 1);
  }

  // Installs a file of a wheel; returns its directory.
  std::string Install(const std::string& wheel, const std::string& file) {
    const std::string directory = site_ + "/nvidia/" + wheel + "/lib";
    std::filesystem::create_directories(directory);
    std::ofstream(directory + "/" + file) << "no library";
    return directory;
  }

  const std::string root_ = ::testing::TempDir() + "nvidia_libraries_test";
  const std::string site_ = root_ + "/lib/python3.12/site-packages";
};

TEST_F(NvidiaLibrariesTest, WheelsComeAfterTheToolkit) {
  const std::string cuda = Install("cu13", "libcublasLt.so.13"), cudnn = Install("cudnn", "libcudnn.so.9"),
                    nccl = Install("nccl", "libnccl.so.2");
  EXPECT_THAT(NvidiaDirectories("/toolkit/lib64", 13), ElementsAre("/toolkit/lib64", cuda, cudnn, nccl));
}

TEST_F(NvidiaLibrariesTest, WheelsOfAnotherCudaAreNotSearched) {
  Install("cublas", "libcublasLt.so.12");
  Install("cudnn", "libcudnn.so.9");
  EXPECT_THAT(NvidiaDirectories("/toolkit/lib64", 13), ElementsAre("/toolkit/lib64"));
}

TEST_F(NvidiaLibrariesTest, SearchesThePythonOfThePathAndThePythonPath) {
  const std::string cuda = Install("cu13", "libcublasLt.so.13");
  unsetenv("VIRTUAL_ENV");
  EXPECT_THAT(NvidiaDirectories("", 13), ElementsAre());
  setenv("PATH", ("/nowhere/bin:" + root_ + "/bin").c_str(), 1);
  EXPECT_THAT(NvidiaDirectories("", 13), ElementsAre(cuda));
  unsetenv("PATH");
  setenv("PYTHONPATH", site_.c_str(), 1);
  EXPECT_THAT(NvidiaDirectories("", 13), ElementsAre(cuda));
}

TEST_F(NvidiaLibrariesTest, AMissingLibraryIsNamedWithTheDirectoriesAndTheWayOut) {
  EXPECT_EQ(OpenNvidiaLibrary({"cuBLAS", 99, "libcublasLt.so.99"}, {"/toolkit/lib64", "/other"}).problem,
            "cuBLAS not found: libcublasLt.so.99 is neither in the loader's search path nor in /toolkit/lib64, /other; "
            "install cuBLAS 99, or add its directory to LD_LIBRARY_PATH");
}

TEST_F(NvidiaLibrariesTest, AnotherMajorVersionInAWheelIsNamed) {
  const std::string directory = Install("cublas", "libcublasLt.so.12");
  Install("cublas", "libcublasLt.so.12.8.4.1");
  EXPECT_EQ(OpenNvidiaLibrary({"cuBLAS", 99, "libcublasLt.so.99"}, {"/toolkit/lib64"}).problem,
            "cuBLAS not found: libcublasLt.so.99 is neither in the loader's search path nor in /toolkit/lib64; " +
                directory +
                "/libcublasLt.so.12 is there, but has another major version; install cuBLAS 99, or add its directory "
                "to LD_LIBRARY_PATH");
}

TEST_F(NvidiaLibrariesTest, AFileThatIsNoLibrarySaysWhy) {
  const std::string directory = Install("cu99", "libcublasLt.so.99");
  const std::string problem = OpenNvidiaLibrary({"cuBLAS", 99, "libcublasLt.so.99"}, {directory}).problem;
  EXPECT_THAT(problem, StartsWith("cuBLAS cannot be loaded: " + directory + "/libcublasLt.so.99: "));
  EXPECT_THAT(problem, EndsWith("; install cuBLAS 99 again"));
}

TEST_F(NvidiaLibrariesTest, ALibraryOfAWheelIsLoadedAndNamed) {
  const std::string directory = Install("cu99", "placeholder");
  // Any library will do; the C library's mathematics has no version function.
  std::filesystem::create_symlink(OpenNvidiaLibrary({"m", 6, "libm.so.6"}, {}).path, directory + "/libfake.so.99");
  const NvidiaSearchResult found = OpenNvidiaLibrary({"fake", 99, "libfake.so.99"}, {directory});
  EXPECT_NE(found.handle, nullptr);
  EXPECT_EQ(found.version, "");
  EXPECT_EQ(found.problem, "");
}

}  // namespace
}  // namespace ballast
