// Where a packet goes and how, in the form that sendmsg wants: the peer's socket address, and
// ancillary data for a traffic class, hop limit or flow label other than the socket's own.
//
// Thread: any; a value.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "daemon/device/soft/packet_io.h"

namespace rdmad::soft {

class UdpPeer {
 public:
  // Room for one int-sized control message, and how many of those there may be.
  static constexpr size_t kIntControlBytes = CMSG_SPACE(sizeof(int));
  static constexpr size_t kMaxControlBytes = 3 * kIntControlBytes;

  UdpPeer(const Flow& flow, uint16_t port) noexcept;

  [[nodiscard]] const sockaddr_storage& address() const noexcept { return address_; }
  [[nodiscard]] socklen_t address_bytes() const noexcept { return address_bytes_; }
  // What msg_control needs besides a batch's UDP_SEGMENT; mostly empty. Copies the bytes to `out`,
  // returns how many.
  size_t CopyControl(std::span<std::byte, kMaxControlBytes> out) const noexcept;

 private:
  void AddControl(int level, int type, int value) noexcept;

  sockaddr_storage address_;
  socklen_t address_bytes_;
  size_t control_bytes_ = 0;
  alignas(cmsghdr) std::array<std::byte, kMaxControlBytes> control_;
};

// Writes one control message with an integer of `T` to `out` and returns the bytes it takes.
template <typename T>
size_t PutControl(std::byte* out, int level, int type, T value) noexcept {
  cmsghdr header{};
  header.cmsg_len = CMSG_LEN(sizeof(T));
  header.cmsg_level = level;
  header.cmsg_type = type;
  std::memset(out, 0, CMSG_SPACE(sizeof(T)));
  std::memcpy(out, &header, sizeof(header));
  std::memcpy(out + CMSG_LEN(0), &value, sizeof(value));
  return CMSG_SPACE(sizeof(T));
}

}  // namespace rdmad::soft
