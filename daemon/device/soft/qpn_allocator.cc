#include "daemon/device/soft/qpn_allocator.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace rdmad::soft {
namespace {

constexpr uint32_t kNumbers = 1u << 24;

// Source: Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators (SplitMix64).
uint64_t Mix(uint64_t value) noexcept {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

}  // namespace

QpnAllocator::QpnAllocator(uint64_t seed) : engines_(kEngines), taken_(kNumbers / 64) {
  for (uint32_t i = 0; i < kEngines; ++i) {
    engines_[i].next = static_cast<uint32_t>(Mix(seed + i)) % kNumbersPerEngine;
  }
  for (const uint32_t reserved : {0u, 1u, kNumbers - 1}) SetTaken(reserved, true);
}

absl::StatusOr<uint32_t> QpnAllocator::Allocate(uint32_t engine_index, device::TimeNs now) {
  RD_CHECK(engine_index < kEngines, "engine index fits its bits");
  Engine& engine = engines_[engine_index];
  EndQuarantine(engine, now);
  // Numbers in use are few, so the first try nearly always succeeds.
  for (uint32_t tries = 0; tries < kNumbersPerEngine; ++tries) {
    const uint32_t qpn = engine.next << kEngineBits | engine_index;
    engine.next = (engine.next + 1) % kNumbersPerEngine;
    if (Taken(qpn)) continue;
    SetTaken(qpn, true);
    ++in_use_;
    return qpn;
  }
  return absl::ResourceExhaustedError(absl::StrCat("create_qp: no QP number left on engine ",
                                                   engine_index, ": limit=", kNumbersPerEngine,
                                                   ", numbers rest for 4 s after use"));
}

void QpnAllocator::Free(uint32_t qpn, device::TimeNs now) {
  RD_CHECK(qpn > 1 && qpn < kNumbers - 1 && Taken(qpn), "only allocated numbers are freed");
  --in_use_;
  engines_[qpn & (kEngines - 1)].resting.push_back({qpn, now + kQuarantineNs});
}

void QpnAllocator::EndQuarantine(Engine& engine, device::TimeNs now) {
  while (!engine.resting.empty() && engine.resting.front().until <= now) {
    SetTaken(engine.resting.front().qpn, false);
    engine.resting.pop_front();
  }
}

void QpnAllocator::SetTaken(uint32_t qpn, bool taken) noexcept {
  const uint64_t bit = uint64_t{1} << (qpn & 63);
  if (taken) {
    taken_[qpn >> 6] |= bit;
  } else {
    taken_[qpn >> 6] &= ~bit;
  }
}

}  // namespace rdmad::soft
