// How fast one core copies messages from one place in memory to another: the bound for a daemon
// that copies each byte once.
//
//   memcpy_bandwidth [--size BYTES] [--seconds S] [--region BYTES]
//
// Twice: *warm*, the same two buffers again and again, as a program sends that reuses its buffers,
// so that the bytes come from the cache if they fit; and *cold*, through two regions many times
// larger than the caches. With --region instead once, through two regions of that size: as many
// bytes as a program touches that has several messages under way. Prints one line of JSON for each.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/bench/peers/sample_stats.h"

namespace rdmad::bench {
namespace {

constexpr size_t kColdBytes = size_t{1} << 30;  // each of the two regions

std::byte* Map(size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("memcpy_bandwidth: mmap");
    std::exit(1);
  }
  return static_cast<std::byte*>(memory);
}

// Copies `size_bytes` at a time, through `region_bytes` and again from the start.
void Measure(const char* name, size_t size_bytes, size_t region_bytes, double seconds) {
  std::byte* from = Map(region_bytes);
  std::byte* to = Map(region_bytes);
  std::memset(from, 1, region_bytes);
  std::memset(to, 2, region_bytes);
  const int64_t start_ns = NowNs();
  const auto end_ns = start_ns + static_cast<int64_t>(seconds * 1e9);
  uint64_t copied = 0;
  int64_t now_ns = start_ns;
  for (size_t at = 0; now_ns < end_ns; now_ns = NowNs()) {
    std::memcpy(to + at, from + at, size_bytes);
    asm volatile("" : : "r"(to + at) : "memory");  // the copy is not to be left out
    copied += size_bytes;
    at += size_bytes;
    if (at + size_bytes > region_bytes) at = 0;
  }
  const double bytes_per_s =
      static_cast<double>(copied) * 1e9 / static_cast<double>(now_ns - start_ns);
  std::printf(
      "{\"bench\": \"%s\", \"size_bytes\": %zu, \"region_bytes\": %zu, "
      "\"gigabytes_per_s\": %.3f}\n",
      name, size_bytes, region_bytes, bytes_per_s / 1e9);
  ::munmap(from, region_bytes);
  ::munmap(to, region_bytes);
}

int Main(int argc, char** argv) {
  size_t size_bytes = 1 << 20;
  size_t region_bytes = 0;
  double seconds = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--size") size_bytes = std::strtoull(argv[i + 1], nullptr, 10);
    if (word == "--region") region_bytes = std::strtoull(argv[i + 1], nullptr, 10);
    if (word == "--seconds") seconds = std::strtod(argv[i + 1], nullptr);
  }
  if (size_bytes == 0 || size_bytes > kColdBytes || seconds <= 0 ||
      (region_bytes != 0 && region_bytes < size_bytes)) {
    std::fprintf(stderr, "usage: memcpy_bandwidth [--size BYTES] [--seconds S] [--region BYTES]\n");
    return 2;
  }
  if (region_bytes != 0) {
    Measure("memcpy region", size_bytes, region_bytes, seconds);
    return 0;
  }
  Measure("memcpy warm", size_bytes, size_bytes, seconds);
  Measure("memcpy cold", size_bytes, kColdBytes, seconds);
  return 0;
}

}  // namespace
}  // namespace rdmad::bench

int main(int argc, char** argv) {
  return rdmad::bench::Main(argc, argv);
}
