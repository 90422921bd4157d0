// What operators see of a session.
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/session/convert.h"
#include "daemon/session/session.h"

namespace rdmad::session {

v1::ObjectCounts Session::Counts() const {
  v1::ObjectCounts counts;
  counts.set_pds(pds_.count());
  counts.set_regions(regions_.count());
  counts.set_pools(pools_.count());
  counts.set_pool_bytes(quota_.in_use(Resource::kPoolBytes));
  counts.set_completion_channels(channels_.count());
  counts.set_cqs(cqs_.count());
  counts.set_qps(qps_.count());
  counts.set_srqs(srqs_.count());
  counts.set_ahs(ahs_.count());
  counts.set_mws(mws_.count());
  counts.set_multicasts(multicasts_.count());
  counts.set_event_channels(event_channels_.count());
  counts.set_cm_ids(cm_ids_.count());
  counts.set_arena_bytes(arenas_.reserved_bytes());
  return counts;
}

engine::SessionCounters Session::Counters() const {
  engine::SessionCounters sum;
  for (const auto& lane : lanes_) {
    if (lane != nullptr) sum += lane->port->Counters();
  }
  return sum;
}

void Session::AddQpsByDevice(std::vector<uint32_t>* counts) const {
  for (const auto& [index, count] : qps_by_device_) {
    if (index >= counts->size()) counts->resize(index + 1);
    (*counts)[index] += count;
  }
}

bool Session::AddPools(uint32_t* slot, ListBudget* budget, v1::ListPoolsReply* reply) const {
  return pools_.ForEachFrom(slot, budget, [&](Handle handle, const PoolObject& object) {
    if (object.phase != Phase::kLive || !object.pool) return;
    budget->Entry();
    v1::PoolStatus* status = reply->add_pools();
    status->set_session_id(identity_.id);
    status->set_pool(handle);
    status->set_name(object.pool->name());
    status->set_size_bytes(object.pool->size_bytes());
    status->set_page_bytes(object.pool->page_bytes());
    status->set_regions(static_cast<uint32_t>(object.users.count()));
  });
}

bool Session::AddConnections(uint32_t* slot, ListBudget* budget,
                             const std::vector<IpAddress>& own_addresses,
                             v1::ListConnectionsReply* reply, std::function<void()> done) {
  // One more than there are answers to come, so that it cannot reach 0 before all were asked.
  auto left = std::make_shared<size_t>(1);
  auto all_asked = std::make_shared<std::function<void()>>(std::move(done));
  const auto answer = [left, all_asked] {
    if (--*left == 0) (*all_asked)();
  };
  const bool all = cm_ids_.ForEachFrom(slot, budget, [&](Handle handle, const CmIdObject& object) {
    budget->Entry();
    const cm::CmId& id = *object.id;
    // Repeated fields keep their elements in place, so the pointer stays good while others are
    // added.
    v1::ConnectionStatus* status = reply->add_connections();
    status->set_session_id(identity_.id);
    status->set_id(handle);
    status->set_state(id.state_name());
    if (id.local() != SocketAddress()) status->set_local(id.local().ToString());
    if (id.peer() != SocketAddress()) status->set_peer(id.peer().ToString());
    if (id.device() != nullptr) status->set_device(id.device()->name());
    status->set_remote_qpn(id.remote_qpn());
    status->set_age_ms(
        static_cast<uint64_t>((environment_.clock() - object.created_ns) / 1'000'000));
    status->set_same_daemon(id.peer() != SocketAddress() &&
                            std::find(own_addresses.begin(), own_addresses.end(), id.peer().ip) !=
                                own_addresses.end());
    const QpObject* qp = qps_.Find(object.qp);
    if (qp == nullptr || qp->phase != Phase::kLive || closing()) return;
    status->set_qpn(qp->qp->qpn());
    ++*left;
    ++commands_in_flight_;
    qp->lane->engine->ShowQp(*qp->qp, [this, status, answer](const device::QpAttr& attr) {
      OnAnswer([&] {
        status->set_qp_state(QpStateName(attr.state));
        status->set_path_mtu_bytes(device::MtuBytes(attr.path_mtu));
        answer();
      });
    });
  });
  answer();
  return all;
}

}  // namespace rdmad::session
