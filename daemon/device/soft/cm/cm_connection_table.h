// All connections of the connection manager, by the names under which messages and timers ask for
// them.
//
// Local communication ids are random, so that nobody off the path can guess one, and unique while
// the connection lives. Thread: control. Owner: SoftConnectionManager.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/device/soft/cm/cm_connection.h"
#include "daemon/wire/cm/cm_fields.h"
#include "daemon/wire/ids.h"

namespace rdmad::soft {

class CmConnectionTable {
 public:
  // An id that no connection has and that is not 0. `random` is asked until it gives one.
  wire::CommId UnusedId(const std::function<uint64_t()>& random) const;

  // Enters a connection under its local id and, if it is passive, under the peer's.
  CmConnection* Add(std::unique_ptr<CmConnection> connection);
  // Forgets and destroys it.
  void Remove(CmConnection* connection);
  void Rename(CmConnection* connection, wire::CommId id);

  // Null: none.
  CmConnection* Find(wire::CommId local_id) const;
  CmConnection* FindPassive(const IpAddress& remote, wire::CommId remote_id) const;
  CmConnection* FindByRemoteQpn(const IpAddress& remote, wire::Qpn remote_qpn) const;

  // The peer's QP of a connection that is coming up or stands. Adding returns the connection that
  // had it until now.
  CmConnection* AddRemoteQpn(CmConnection* connection);
  void RemoveRemoteQpn(CmConnection* connection);

  void SetTimer(CmConnection* connection, TimeNs deadline);
  [[nodiscard]] TimeNs NextDeadline() const noexcept;
  // The connection whose timer is due first, its timer stopped; null if none is due.
  CmConnection* TakeDue(TimeNs now);

  // Calls `visit` for each connection of the device. It may move them but not add or remove any.
  void ForEachOf(const device::Device* device, const std::function<void(CmConnection&)>& visit);

  [[nodiscard]] size_t size() const noexcept { return connections_.size(); }
  [[nodiscard]] size_t remote_qpn_count() const noexcept { return by_remote_qpn_.size(); }
  [[nodiscard]] size_t passive_count() const noexcept { return passive_.size(); }

 private:
  struct PeerKey {
    IpAddress remote;
    uint32_t number;  // communication id or QPN
    friend bool operator==(const PeerKey&, const PeerKey&) = default;
  };
  struct PeerKeyHash {
    size_t operator()(const PeerKey& key) const noexcept {
      return key.remote.Hash() ^ key.number * size_t{0x9e3779b97f4a7c15u};
    }
  };
  using PeerMap = std::unordered_map<PeerKey, CmConnection*, PeerKeyHash>;

  static PeerKey IdKey(const CmConnection& connection);
  static PeerKey QpnKey(const CmConnection& connection);
  static void EraseOwn(PeerMap* map, const PeerKey& key, const CmConnection* connection);

  std::unordered_map<wire::CommId, std::unique_ptr<CmConnection>> connections_;
  PeerMap passive_;
  PeerMap by_remote_qpn_;
  std::set<std::pair<TimeNs, uint32_t>> timers_;  // deadline, local id
};

}  // namespace rdmad::soft
