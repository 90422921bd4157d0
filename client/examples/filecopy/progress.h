#pragma once

#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>

namespace filecopy {

// A bar on stderr that is drawn anew a few times a second; nothing unless that is a terminal.
class Progress {
 public:
  Progress(std::string label, uint64_t total_bytes, bool quiet)
      : label_(std::move(label)), total_bytes_(total_bytes), on_(!quiet && ::isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (on_ && drawn_) std::fputc('\n', stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(uint64_t done_bytes) {
    if (!on_) return;
    const auto now = std::chrono::steady_clock::now();
    if (drawn_ && done_bytes < total_bytes_ && now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    drawn_ = true;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double part = total_bytes_ == 0 ? 1 : static_cast<double>(done_bytes) / static_cast<double>(total_bytes_);
    constexpr int kWidth = 40;
    const int full = static_cast<int>(part * kWidth);
    const std::string bar = std::string(static_cast<size_t>(full), '#') + std::string(static_cast<size_t>(kWidth - full), '.');
    std::fprintf(stderr, "\r%s [%s] %3d %%  %.1f MB  %.0f MB/s ", label_.c_str(), bar.c_str(),
                 static_cast<int>(part * 100), static_cast<double>(done_bytes) / 1e6,
                 seconds > 0 ? static_cast<double>(done_bytes) / 1e6 / seconds : 0.0);
  }

 private:
  const std::string label_;
  const uint64_t total_bytes_;
  const bool on_;
  bool drawn_ = false;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_;
};

}  // namespace filecopy
