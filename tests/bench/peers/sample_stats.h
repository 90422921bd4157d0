// Percentiles of measured times, and how the peers of the bench print their results.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace rdmad::bench {

inline int64_t NowNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// In the order in which they were taken.
class SampleStats {
 public:
  explicit SampleStats(std::vector<int64_t> samples_ns) : samples_(std::move(samples_ns)) {
    std::sort(samples_.begin(), samples_.end());
  }

  // `part` of 0 to 1. Microseconds.
  [[nodiscard]] double PercentileUs(double part) const {
    if (samples_.empty()) return 0;
    const auto index = static_cast<size_t>(part * static_cast<double>(samples_.size() - 1));
    return static_cast<double>(samples_[index]) / 1000;
  }
  [[nodiscard]] double MeanUs() const {
    double sum = 0;
    for (const int64_t sample : samples_) sum += static_cast<double>(sample);
    return samples_.empty() ? 0 : sum / static_cast<double>(samples_.size()) / 1000;
  }

  // One line of JSON.
  void Print(const char* what, size_t size_bytes) const {
    std::printf(
        "{\"bench\": \"%s\", \"size_bytes\": %zu, \"iterations\": %zu, \"mean_us\": %.3f, "
        "\"p50_us\": %.3f, \"p90_us\": %.3f, \"p99_us\": %.3f, \"min_us\": %.3f, "
        "\"max_us\": %.3f}\n",
        what, size_bytes, samples_.size(), MeanUs(), PercentileUs(0.5), PercentileUs(0.9),
        PercentileUs(0.99), PercentileUs(0), PercentileUs(1));
  }

 private:
  std::vector<int64_t> samples_;
};

}  // namespace rdmad::bench
