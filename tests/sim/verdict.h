// What a simulation has to say: its first failure, a fingerprint of all that happened, and, on
// demand, a trace.
#pragma once

#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>

namespace rdmad::sim {

class Verdict {
 public:
  explicit Verdict(bool trace) : trace_(trace) {}

  // Only the first failure counts: what follows may be its consequence.
  template <class... Parts>
  void Fail(const Parts&... parts) {
    if (failed()) return;
    std::ostringstream text;
    (text << ... << parts);
    failure_ = text.str();
  }
  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }

  void Mix(uint64_t value) { fingerprint_ = (fingerprint_ ^ value) * 0x100000001b3; }
  uint64_t fingerprint() const { return fingerprint_; }

  template <class... Parts>
  void Trace(const Parts&... parts) const {
    if (!trace_) return;
    std::ostringstream text;
    (text << ... << parts);
    std::puts(text.str().c_str());
  }
  bool traces() const { return trace_; }

 private:
  const bool trace_;
  std::string failure_;
  uint64_t fingerprint_ = 0xcbf29ce484222325;
};

}  // namespace rdmad::sim
