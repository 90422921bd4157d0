// All SIDR exchanges of the connection manager, by the names under which messages and timers ask
// for them. Ours are found by our request id, which is random, so that nobody off the path can
// guess it; a peer's by its address and its id.
//
// Thread: control. Owner: SoftConnectionManager.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/device/soft/cm/sidr_exchange.h"
#include "daemon/wire/cm/cm_fields.h"

namespace rdmad::soft {

class SidrTable {
 public:
  // An id that no exchange of ours has and that is not 0. `random` is asked until it gives one.
  wire::CommId UnusedId(const std::function<uint64_t()>& random) const;

  // There must be none of the same name yet.
  SidrExchange* Add(std::unique_ptr<SidrExchange> exchange);
  // Forgets and destroys it.
  void Remove(SidrExchange* exchange);

  // Null: none.
  SidrExchange* FindActive(wire::CommId request_id) const;
  SidrExchange* FindPassive(const Flow& flow, wire::CommId request_id) const;

  void SetTimer(SidrExchange* exchange, TimeNs deadline);
  [[nodiscard]] TimeNs NextDeadline() const noexcept;
  // The exchange whose timer is due first, its timer stopped; null if none is due.
  SidrExchange* TakeDue(TimeNs now);

  // Calls `visit` for each exchange of the device. It may move them but not add or remove any.
  void ForEachOf(const device::Device* device, const std::function<void(SidrExchange&)>& visit);

  [[nodiscard]] size_t size() const noexcept { return exchanges_.size(); }

 private:
  // Whose id it is (the wildcard: ours), whom it was sent to, the id.
  using Key = std::tuple<IpAddress, IpAddress, uint32_t>;

  static Key KeyOf(const SidrExchange& exchange);
  SidrExchange* Find(const Key& key) const;

  std::map<Key, std::unique_ptr<SidrExchange>> exchanges_;
  std::set<std::pair<TimeNs, SidrExchange*>> timers_;
};

}  // namespace rdmad::soft
