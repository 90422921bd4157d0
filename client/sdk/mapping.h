#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/sdk/status_errno.h"

namespace rdmad::sdk {

// A shared mapping of a segment of the daemon's. Move-only; unmaps itself.
class Mapping {
 public:
  Mapping() = default;
  // Maps all of the descriptor's `size_bytes`; the descriptor may be closed afterwards. `what` names it in errors.
  static absl::StatusOr<Mapping> Map(int fd, size_t size_bytes, int protection, const std::string& what) {
    void* data = size_bytes == 0 ? MAP_FAILED : ::mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      return ErrnoToStatus(size_bytes == 0 ? EINVAL : errno, what + ": mmap of " + std::to_string(size_bytes) + " bytes");
    }
    return Mapping(static_cast<std::byte*>(data), size_bytes);
  }
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, size_bytes_);
  }

  std::byte* data() const noexcept { return data_; }
  size_t size_bytes() const noexcept { return size_bytes_; }

 private:
  Mapping(std::byte* data, size_t size_bytes) noexcept : data_(data), size_bytes_(size_bytes) {}
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace rdmad::sdk
