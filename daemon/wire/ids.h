// Numbers that name things on the wire, each a type of its own so that swapped arguments do not
// compile.
//
// `WireId` names something (a QP, a key): equality and a hash, no arithmetic. `SerialNumber` counts
// modulo 2^24 (PSN, MSN): it adds, and compares in the serial sense, where a number is *after*
// another if it is reached by going forward less than half the circle. Serial order is not
// transitive, hence no operator<. Values wider than the field are cut to its width.
// Source: IBTA vol. 1, Base Transport Header; the Transport Layer chapter on PSN comparison.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace rdmad::wire {

template <typename Tag, int kBits>
class WireId {
 public:
  static_assert(kBits > 0 && kBits <= 32);
  static constexpr uint32_t kMask = kBits == 32 ? 0xffffffffu : (1u << (kBits % 32)) - 1;

  constexpr WireId() = default;
  explicit constexpr WireId(uint32_t value) noexcept : value_(value & kMask) {}

  [[nodiscard]] constexpr uint32_t value() const noexcept { return value_; }

  friend constexpr auto operator<=>(WireId, WireId) = default;

  template <typename H>
  friend H AbslHashValue(H state, WireId id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  uint32_t value_ = 0;
};

using Qpn = WireId<struct QpnTag, 24>;
using PKey = WireId<struct PKeyTag, 16>;
using Qkey = WireId<struct QkeyTag, 32>;
using Rkey = WireId<struct RkeyTag, 32>;

inline constexpr Qpn kSmiQpn{0};               // subnet management; unused by RoCE
inline constexpr Qpn kGsiQpn{1};               // the CM talks here
inline constexpr Qpn kMulticastQpn{0xffffff};  // destination of every UD multicast packet
inline constexpr Qkey kGsiQkey{0x80010000};
inline constexpr PKey kDefaultPKey{0xffff};  // full member of the only partition that RoCE has

// Two P_Keys talk if their partition (low 15 bits) is the same and at least one is a full member
// (bit 15).
// Source: IBTA vol. 1, Partitioning.
[[nodiscard]] constexpr bool PKeysMatch(PKey a, PKey b) noexcept {
  return ((a.value() ^ b.value()) & 0x7fff) == 0 && ((a.value() | b.value()) & 0x8000) != 0 &&
         (a.value() & 0x7fff) != 0;
}

template <typename Tag>
class SerialNumber {
 public:
  static constexpr uint32_t kMask = 0xffffff;

  constexpr SerialNumber() = default;
  explicit constexpr SerialNumber(uint32_t value) noexcept : value_(value & kMask) {}

  [[nodiscard]] constexpr uint32_t value() const noexcept { return value_; }

  friend constexpr bool operator==(SerialNumber, SerialNumber) = default;

  friend constexpr SerialNumber operator+(SerialNumber a, uint32_t count) noexcept {
    return SerialNumber(a.value_ + count);
  }
  friend constexpr SerialNumber operator-(SerialNumber a, uint32_t count) noexcept {
    return SerialNumber(a.value_ - count);
  }
  constexpr SerialNumber& operator+=(uint32_t count) noexcept { return *this = *this + count; }
  constexpr SerialNumber& operator++() noexcept { return *this += 1; }

  // Signed distance from `b` to `a`, in [-2^23, 2^23): a == b + (a - b) always holds modulo 2^24.
  friend constexpr int32_t operator-(SerialNumber a, SerialNumber b) noexcept {
    const uint32_t forward = (a.value_ - b.value_) & kMask;
    return static_cast<int32_t>(forward << 8) >> 8;  // sign-extends from bit 23
  }

  template <typename H>
  friend H AbslHashValue(H state, SerialNumber number) {
    return H::combine(std::move(state), number.value_);
  }

 private:
  uint32_t value_ = 0;
};

template <typename Tag>
[[nodiscard]] constexpr bool IsBefore(SerialNumber<Tag> a, SerialNumber<Tag> b) noexcept {
  return a - b < 0;
}

template <typename Tag>
[[nodiscard]] constexpr bool IsAfter(SerialNumber<Tag> a, SerialNumber<Tag> b) noexcept {
  return a - b > 0;
}

// How many steps forward lead from `first` to `value`, in [0, 2^24). For windows: value lies in
// [first, first + count) exactly if ForwardDistance(first, value) < count.
template <typename Tag>
[[nodiscard]] constexpr uint32_t ForwardDistance(SerialNumber<Tag> first,
                                                 SerialNumber<Tag> value) noexcept {
  return (value.value() - first.value()) & SerialNumber<Tag>::kMask;
}

using Psn = SerialNumber<struct PsnTag>;
using Msn = SerialNumber<struct MsnTag>;

}  // namespace rdmad::wire

template <typename Tag, int kBits>
struct std::hash<rdmad::wire::WireId<Tag, kBits>> {
  size_t operator()(rdmad::wire::WireId<Tag, kBits> id) const noexcept {
    return std::hash<uint32_t>()(id.value());
  }
};
