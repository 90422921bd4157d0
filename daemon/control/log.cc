#include "daemon/control/log.h"

#include <algorithm>
#include <array>
#include <utility>

#include "daemon/control/stderr_sink.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/spdlog.h"

namespace rdmad::control {
namespace {

constexpr std::array<const char*, 6> kRooms = {"control", "session", "cm",
                                               "device",  "engine",  "main"};

// "<6>": the priority by which the journal sorts a line; sd-daemon(3).
class JournalPriority final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const char* prefix = "<6>";
    switch (message.level) {
      case spdlog::level::trace:
      case spdlog::level::debug:
        prefix = "<7>";
        break;
      case spdlog::level::info:
        prefix = "<6>";
        break;
      case spdlog::level::warn:
        prefix = "<4>";
        break;
      case spdlog::level::err:
        prefix = "<3>";
        break;
      case spdlog::level::critical:
        prefix = "<2>";
        break;
      default:
        break;
    }
    out.append(prefix, prefix + 3);
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<JournalPriority>();
  }
};

}  // namespace

void InitLogging(const std::string& level, bool journal) {
  auto sink = std::make_shared<StderrSink>();
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  if (journal) {
    formatter->add_flag<JournalPriority>('*').set_pattern("%*%n: %v");
  } else {
    formatter->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %n: %v");
  }
  sink->set_formatter(std::move(formatter));
  spdlog::drop_all();
  // drop_all() takes the default away too: rooms that are not in the list write with this one.
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("rdmad", sink));
  for (const char* room : kRooms) {
    spdlog::register_logger(std::make_shared<spdlog::logger>(room, sink));
  }
  SetLogLevel(level);
}

void SetLogLevel(const std::string& level) {
  spdlog::set_level(spdlog::level::from_str(level));
}

spdlog::logger& Log(const char* room) {
  std::shared_ptr<spdlog::logger> logger = spdlog::get(room);
  // The registry keeps it alive.
  return logger != nullptr ? *logger : *spdlog::default_logger_raw();
}

std::string Printable(const std::string& text, size_t most_bytes) {
  std::string clean = text.substr(0, most_bytes);
  std::replace_if(
      clean.begin(), clean.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return clean;
}

bool LogLimiter::Allow(int64_t now_ns) {
  const int64_t earned = (now_ns - refilled_at_ns_) / interval_ns_;
  if (earned > 0) {
    tokens_ = static_cast<uint32_t>(
        std::min<int64_t>(burst_, tokens_ + std::min<int64_t>(earned, burst_)));
    refilled_at_ns_ += earned * interval_ns_;
  }
  if (tokens_ == 0) {
    ++waiting_;
    return false;
  }
  --tokens_;
  reported_ = std::exchange(waiting_, 0);
  return true;
}

}  // namespace rdmad::control
