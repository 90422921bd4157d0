// Where log lines go: stderr, if it takes them at once.
//
// The control thread writes the log, and must not wait for who reads it: a line that a full pipe, a
// stopped terminal or a busy journal does not take is lost, counted, and told of when there is room
// again.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "daemon/base/unique_fd.h"
#include "spdlog/sinks/base_sink.h"

namespace rdmad::control {

// Thread: any.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // `fd` is not owned.
  explicit StderrSink(int fd = 2);

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

  // False: nothing of it was taken. What was taken in part is finished first next time.
  bool Write(std::string line);
  // How much was taken, without waiting.
  size_t WriteSome(const char* bytes, size_t count) const;

  const UniqueFd own_;  // does not wait, unlike `fd`, which others have too
  const int fd_;
  std::string rest_;  // of a line that was written in part
  uint64_t lost_ = 0;
};

}  // namespace rdmad::control
