// Programs that only tests use (bazel/packages/tools.txt): tshark, prometheus and the like.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace rdmad::testing {

// Where the program is; fetched by bazel/setup.sh if nobody did yet. The test needs
// //tests/support:tools and its data. Errors: NotFound with what setup.sh says: skip the test.
absl::StatusOr<std::string> FindTool(const std::string& program);

}  // namespace rdmad::testing
