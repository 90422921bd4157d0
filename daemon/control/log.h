// Logging: one spdlog logger per room, all on stderr, lines of key=value.
//
// On a terminal or in a file a line carries its time; under systemd (JOURNAL_STREAM) it carries the
// priority prefix of sd-daemon(3) instead, for the journal has the time already. Engines do not
// log: they count. Text that comes from a client goes through Printable() before it is logged.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "spdlog/logger.h"

namespace rdmad::control {

// Makes the loggers. `level` is a word of LogConfig. Once, before the first Log().
void InitLogging(const std::string& level, bool journal);

// Of all rooms, from now on.
void SetLogLevel(const std::string& level);

// The logger of a room: "control", "session", "device", "engine". Never null; before InitLogging()
// it writes with spdlog's defaults.
spdlog::logger& Log(const char* room);

// `text` with everything but printable ASCII replaced by '?', and cut to `most_bytes`.
std::string Printable(const std::string& text, size_t most_bytes = 256);

// Lets at most `burst` messages through at once and one more per `interval_ns` after that, so that
// a client that misbehaves in a loop cannot fill the log. Thread: one. Owner: who logs.
class LogLimiter {
 public:
  LogLimiter(uint32_t burst, int64_t interval_ns)
      : burst_(burst), interval_ns_(interval_ns), tokens_(burst) {}

  // Whether this message may be written; then `suppressed()` says how many were not since the last
  // one.
  bool Allow(int64_t now_ns);
  [[nodiscard]] uint64_t suppressed() const noexcept { return reported_; }

 private:
  const uint32_t burst_;
  const int64_t interval_ns_;
  uint32_t tokens_;
  int64_t refilled_at_ns_ = 0;
  uint64_t waiting_ = 0;
  uint64_t reported_ = 0;
};

}  // namespace rdmad::control
