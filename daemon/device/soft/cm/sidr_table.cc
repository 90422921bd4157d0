#include "daemon/device/soft/cm/sidr_table.h"

#include "daemon/base/check.h"

namespace rdmad::soft {

SidrTable::Key SidrTable::KeyOf(const SidrExchange& exchange) {
  const SidrFacts& facts = exchange.facts();
  if (!exchange.is_passive()) return {IpAddress(), IpAddress(), facts.request_id.value()};
  return {facts.flow.remote, facts.flow.local, facts.request_id.value()};
}

SidrExchange* SidrTable::Find(const Key& key) const {
  const auto found = exchanges_.find(key);
  return found == exchanges_.end() ? nullptr : found->second.get();
}

wire::CommId SidrTable::UnusedId(const std::function<uint64_t()>& random) const {
  for (;;) {
    const wire::CommId id(static_cast<uint32_t>(random() >> 32));
    if (id != wire::CommId() && FindActive(id) == nullptr) return id;
  }
}

SidrExchange* SidrTable::Add(std::unique_ptr<SidrExchange> exchange) {
  const auto [added, is_new] = exchanges_.emplace(KeyOf(*exchange), std::move(exchange));
  RD_CHECK(is_new, "a SIDR exchange has a name of its own");
  return added->second.get();
}

void SidrTable::Remove(SidrExchange* exchange) {
  SetTimer(exchange, device::kNever);
  exchanges_.erase(KeyOf(*exchange));
}

SidrExchange* SidrTable::FindActive(wire::CommId request_id) const {
  return Find({IpAddress(), IpAddress(), request_id.value()});
}

SidrExchange* SidrTable::FindPassive(const Flow& flow, wire::CommId request_id) const {
  return Find({flow.remote, flow.local, request_id.value()});
}

void SidrTable::SetTimer(SidrExchange* exchange, TimeNs deadline) {
  if (exchange->timer != device::kNever) timers_.erase({exchange->timer, exchange});
  if (deadline != device::kNever) timers_.emplace(deadline, exchange);
  exchange->timer = deadline;
}

TimeNs SidrTable::NextDeadline() const noexcept {
  return timers_.empty() ? device::kNever : timers_.begin()->first;
}

SidrExchange* SidrTable::TakeDue(TimeNs now) {
  if (NextDeadline() > now) return nullptr;
  SidrExchange* const due = timers_.begin()->second;
  SetTimer(due, device::kNever);
  return due;
}

void SidrTable::ForEachOf(const device::Device* device,
                          const std::function<void(SidrExchange&)>& visit) {
  for (const auto& [key, exchange] : exchanges_) {
    if (exchange->device() == device) visit(*exchange);
  }
}

}  // namespace rdmad::soft
