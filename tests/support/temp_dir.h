// A folder that vanishes with its object.
#pragma once

#include <string>

namespace rdmad::testing {

// Directly under /tmp: Bazel's own folders for tests have names too long for the path of a Unix
// socket (108 bytes).
class TempDir {
 public:
  TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace rdmad::testing
