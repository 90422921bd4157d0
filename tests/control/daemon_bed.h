// What the tests of the running daemon have in common.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/file.h"
#include "tests/support/raw_client.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"

namespace rdmad::testing {

// A loopback address that no other test process uses.
inline std::string OwnAddress(int index = 0) {
  const auto pid = static_cast<unsigned>(getpid());
  return absl::StrCat("127.", 64 + index, ".", pid >> 8 & 255, ".", pid & 255);
}

inline DaemonOptions OwnDaemon(const std::string& more_config = "") {
  DaemonOptions options;
  options.addresses = {OwnAddress()};
  options.more_config = more_config;
  return options;
}

// Runs rdmad until it ends by itself, which it must soon.
inline ProgramResult RunDaemon(const std::vector<std::string>& arguments,
                               const ProcessOptions& options = {}) {
  std::vector<std::string> argv = {Runfile("daemon/rdmad")};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  absl::StatusOr<ProgramResult> result = RunProgram(argv, options, Slow(absl::Seconds(20)));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : ProgramResult{{-1, 0}, ""};
}

// The lines that begin with "rdmad: ", as errors do.
inline std::vector<std::string> ErrorLines(const std::string& output) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < output.size();) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    const std::string line = output.substr(begin, end - begin);
    if (line.rfind("rdmad: ", 0) == 0) lines.push_back(line);
    begin = end + 1;
  }
  return lines;
}

inline bool Has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// True as soon as `condition` holds; false if it does not within a few seconds.
inline bool Soon(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + Slow(absl::Seconds(5));
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

inline absl::StatusOr<v1::GetStatusReply> StatusBy(const RawClient& client) {
  v1::GetStatusReply reply;
  const absl::Status status = client.Call(client.admin(), &v1::AdminService::Stub::GetStatus,
                                          v1::GetStatusRequest(), &reply);
  if (!status.ok()) return status;
  return reply;
}

// Sessions that the daemon has, as a privileged client sees them; -1 on an error.
inline int SessionsSeenBy(const RawClient& client) {
  const absl::StatusOr<v1::GetStatusReply> reply = StatusBy(client);
  return reply.ok() ? static_cast<int>(reply->sessions()) : -1;
}

}  // namespace rdmad::testing
