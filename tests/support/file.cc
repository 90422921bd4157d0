#include "tests/support/file.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <vector>

namespace rdmad::testing {
namespace {

constexpr char kWorkspace[] = "rdmad";

// The folders in which Bazel may have put the test's data: where it says, beside the program, or
// the current one.
std::vector<std::string> RunfileFolders() {
  std::vector<std::string> folders;
  if (const char* folder = std::getenv("TEST_SRCDIR")) {
    folders.push_back(std::string(folder) + "/" + kWorkspace);
  }
  char self[PATH_MAX] = {};
  if (::readlink("/proc/self/exe", self, sizeof(self) - 1) > 0) {
    folders.push_back(std::string(self) + ".runfiles/" + kWorkspace);
  }
  folders.push_back(".");
  return folders;
}

}  // namespace

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return !file.fail();
}

std::string LastLines(const std::string& text, int lines) {
  size_t at = text.size();
  if (at > 0 && text[at - 1] == '\n') --at;
  while (lines > 0 && at != std::string::npos && at > 0) {
    at = text.rfind('\n', at - 1);
    --lines;
  }
  return lines > 0 || at == std::string::npos ? text : text.substr(at + 1);
}

std::string Runfile(const std::string& path) {
  for (const std::string& folder : RunfileFolders()) {
    std::string candidate = folder + "/" + path;
    if (::access(candidate.c_str(), R_OK) == 0) return candidate;
  }
  std::cerr << path << " is not among the data of this test\n";
  std::abort();
}

}  // namespace rdmad::testing
