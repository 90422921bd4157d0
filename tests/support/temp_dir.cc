#include "tests/support/temp_dir.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "daemon/base/check.h"

namespace rdmad::testing {

TempDir::TempDir() {
  char name[] = "/tmp/rdmad-test-XXXXXX";
  RD_CHECK(::mkdtemp(name) != nullptr);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace rdmad::testing
