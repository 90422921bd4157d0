#include "tests/support/tools.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/support/child_process.h"
#include "tests/support/file.h"

namespace rdmad::testing {

absl::StatusOr<std::string> FindTool(const std::string& program) {
  const std::string script =
      absl::StrCat("source ", Runfile("bazel/setup.sh"), " && rdmad_tool ", program, " 2>&1");
  const absl::StatusOr<ProgramResult> result =
      RunProgram({"bash", "-c", script}, {}, absl::Minutes(5));
  if (!result.ok()) return result.status();
  const std::string line = LastLines(result->output, 1);
  if (!result->ok() || line.empty() || line[0] != '/') {
    return absl::NotFoundError(absl::StrCat("needs ", program, ": ", line));
  }
  return std::string(absl::StripTrailingAsciiWhitespace(line));
}

}  // namespace rdmad::testing
