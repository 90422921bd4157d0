#include "daemon/device/port_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rdmad::device {

PortTable::Key PortTable::KeyOf(PortSpace space, uint16_t port) noexcept {
  return uint32_t{static_cast<uint16_t>(space)} << 16 | port;
}

bool PortTable::Covers(const Binding& binding, const IpAddress& address) noexcept {
  if (binding.address == address) return true;
  if (binding.address == IpAddress::AnyV4()) return address.is_v4();
  if (binding.address == IpAddress::AnyV6()) return address.is_v6() || !binding.v6_only;
  return false;
}

bool PortTable::Overlap(const Binding& a, const Binding& b) noexcept {
  return Covers(a, b.address) || Covers(b, a.address);
}

bool PortTable::IsFree(Key key, const Binding& wanted) const {
  const auto found = bindings_.find(key);
  if (found == bindings_.end()) return true;
  return std::none_of(found->second.begin(), found->second.end(), [&](const Binding& other) {
    if (!Overlap(other, wanted)) return false;
    return !(wanted.reuse && other.reuse && !other.listening);
  });
}

std::optional<uint16_t> PortTable::FindEphemeral(PortSpace space, const Binding& wanted,
                                                 uint64_t random) const {
  // An ephemeral port is never shared, REUSEADDR or not.
  Binding alone = wanted;
  alone.reuse = false;
  const uint32_t count = uint32_t{ephemeral_last_} - ephemeral_first_ + 1;
  for (uint32_t i = 0; i < count; ++i) {
    const auto port = static_cast<uint16_t>(ephemeral_first_ + (random + i) % count);
    if (IsFree(KeyOf(space, port), alone)) return port;
  }
  return std::nullopt;
}

absl::StatusOr<uint16_t> PortTable::Bind(OwnerId owner, const Claim& claim, uint64_t random) {
  if (key_of_owner_.contains(owner)) {
    return absl::FailedPreconditionError("bind: the id has a port already");
  }
  const Binding binding{owner, claim.local.ip, claim.reuse, claim.v6_only, false};
  uint16_t port = claim.local.port;
  if (port == 0) {
    const std::optional<uint16_t> found = FindEphemeral(claim.space, binding, random);
    if (!found) return absl::ResourceExhaustedError("bind: no ephemeral port left");
    port = *found;
  } else if (!IsFree(KeyOf(claim.space, port), binding)) {
    return absl::AlreadyExistsError(absl::StrCat("bind: address in use: ", claim.local.ToString()));
  }
  const Key key = KeyOf(claim.space, port);
  bindings_[key].push_back(binding);
  key_of_owner_[owner] = key;
  return port;
}

PortTable::Binding* PortTable::FindBinding(OwnerId owner) {
  const auto key = key_of_owner_.find(owner);
  if (key == key_of_owner_.end()) return nullptr;
  std::vector<Binding>& bindings = bindings_[key->second];
  const auto own = std::find_if(bindings.begin(), bindings.end(),
                                [&](const Binding& binding) { return binding.owner == owner; });
  return &*own;
}

void PortTable::SetOptions(OwnerId owner, bool reuse, bool v6_only) {
  Binding* const own = FindBinding(owner);
  if (own == nullptr) return;
  own->reuse = reuse;
  own->v6_only = v6_only;
}

absl::Status PortTable::Listen(OwnerId owner) {
  Binding* const own = FindBinding(owner);
  if (own == nullptr) return absl::FailedPreconditionError("listen: no port bound");
  const Key key = key_of_owner_[owner];
  for (const Binding& other : bindings_[key]) {
    if (other.owner != owner && Overlap(other, *own)) {
      return absl::AlreadyExistsError(absl::StrCat("listen: port in use: ", key & 0xffff));
    }
  }
  own->listening = true;
  return absl::OkStatus();
}

void PortTable::Release(OwnerId owner) {
  const auto key = key_of_owner_.find(owner);
  if (key == key_of_owner_.end()) return;
  const auto bindings = bindings_.find(key->second);
  std::erase_if(bindings->second, [&](const Binding& binding) { return binding.owner == owner; });
  if (bindings->second.empty()) bindings_.erase(bindings);
  key_of_owner_.erase(key);
}

std::optional<PortTable::OwnerId> PortTable::FindListener(PortSpace space, uint16_t port,
                                                          const IpAddress& dest) const {
  const auto found = bindings_.find(KeyOf(space, port));
  if (found == bindings_.end()) return std::nullopt;
  for (const Binding& binding : found->second) {
    if (binding.listening && Covers(binding, dest)) return binding.owner;
  }
  return std::nullopt;
}

}  // namespace rdmad::device
