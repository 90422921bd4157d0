#include "daemon/device/soft/cm/cm_connection_table.h"

#include "daemon/base/check.h"

namespace rdmad::soft {

CmConnectionTable::PeerKey CmConnectionTable::IdKey(const CmConnection& connection) {
  return {connection.facts().flow.remote, connection.facts().remote_id.value()};
}

CmConnectionTable::PeerKey CmConnectionTable::QpnKey(const CmConnection& connection) {
  return {connection.facts().flow.remote, connection.facts().remote_qpn.value()};
}

void CmConnectionTable::EraseOwn(PeerMap* map, const PeerKey& key, const CmConnection* connection) {
  const auto found = map->find(key);
  if (found != map->end() && found->second == connection) map->erase(found);
}

wire::CommId CmConnectionTable::UnusedId(const std::function<uint64_t()>& random) const {
  for (;;) {
    const wire::CommId id(static_cast<uint32_t>(random() >> 32));
    if (id != wire::CommId() && !connections_.contains(id)) return id;
  }
}

CmConnection* CmConnectionTable::Add(std::unique_ptr<CmConnection> connection) {
  CmConnection* added = connection.get();
  const bool is_new = connections_.emplace(added->facts().local_id, std::move(connection)).second;
  RD_CHECK(is_new, "communication ids are unique");
  if (added->is_passive()) passive_[IdKey(*added)] = added;
  return added;
}

void CmConnectionTable::Remove(CmConnection* connection) {
  SetTimer(connection, device::kNever);
  EraseOwn(&passive_, IdKey(*connection), connection);
  RemoveRemoteQpn(connection);
  connections_.erase(connection->facts().local_id);
}

void CmConnectionTable::Rename(CmConnection* connection, wire::CommId id) {
  const TimeNs timer = connection->timer;
  SetTimer(connection, device::kNever);
  auto node = connections_.extract(connection->facts().local_id);
  node.key() = id;
  connections_.insert(std::move(node));
  connection->set_local_id(id);
  SetTimer(connection, timer);
}

CmConnection* CmConnectionTable::Find(wire::CommId local_id) const {
  const auto found = connections_.find(local_id);
  return found == connections_.end() ? nullptr : found->second.get();
}

CmConnection* CmConnectionTable::FindPassive(const IpAddress& remote,
                                             wire::CommId remote_id) const {
  const auto found = passive_.find({remote, remote_id.value()});
  return found == passive_.end() ? nullptr : found->second;
}

CmConnection* CmConnectionTable::FindByRemoteQpn(const IpAddress& remote,
                                                 wire::Qpn remote_qpn) const {
  const auto found = by_remote_qpn_.find({remote, remote_qpn.value()});
  return found == by_remote_qpn_.end() ? nullptr : found->second;
}

CmConnection* CmConnectionTable::AddRemoteQpn(CmConnection* connection) {
  CmConnection*& slot = by_remote_qpn_[QpnKey(*connection)];
  return std::exchange(slot, connection);
}

void CmConnectionTable::RemoveRemoteQpn(CmConnection* connection) {
  EraseOwn(&by_remote_qpn_, QpnKey(*connection), connection);
}

void CmConnectionTable::SetTimer(CmConnection* connection, TimeNs deadline) {
  const uint32_t id = connection->facts().local_id.value();
  if (connection->timer != device::kNever) timers_.erase({connection->timer, id});
  if (deadline != device::kNever) timers_.emplace(deadline, id);
  connection->timer = deadline;
}

TimeNs CmConnectionTable::NextDeadline() const noexcept {
  return timers_.empty() ? device::kNever : timers_.begin()->first;
}

CmConnection* CmConnectionTable::TakeDue(TimeNs now) {
  if (NextDeadline() > now) return nullptr;
  CmConnection* due = Find(wire::CommId(timers_.begin()->second));
  RD_CHECK(due != nullptr, "a timer belongs to a connection");
  SetTimer(due, device::kNever);
  return due;
}

void CmConnectionTable::ForEachOf(const device::Device* device,
                                  const std::function<void(CmConnection&)>& visit) {
  for (const auto& [id, connection] : connections_) {
    if (connection->device() == device) visit(*connection);
  }
}

}  // namespace rdmad::soft
