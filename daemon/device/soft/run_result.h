// What became of a QP's turn.
#pragma once

#include <cstdint>

namespace rdmad::soft {

struct RunResult {
  uint32_t spent_bytes = 0;
  int work = 0;       // packets and messages
  bool more = false;  // there is more to do right now

  void Add(const RunResult& other) noexcept {
    spent_bytes += other.spent_bytes;
    work += other.work;
    more |= other.more;
  }
};

}  // namespace rdmad::soft
