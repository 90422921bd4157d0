#include "daemon/control/admin.h"

#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "daemon/control/clock.h"
#include "daemon/control/version.h"
#include "daemon/session/convert.h"
#include "daemon/session/user_quota.h"

namespace rdmad::control {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr int kMostUsersShown = 100;

uint64_t AgeMs(int64_t since_ns) {
  return static_cast<uint64_t>(MonotonicNs() - since_ns) / kNsPerMs;
}

void FillSession(session::Session& session, v1::SessionStatus* status) {
  const session::SessionIdentity& who = session.identity();
  const engine::SessionCounters counters = session.Counters();
  status->set_session_id(who.id);
  status->set_name(who.name);
  status->set_pid(static_cast<uint32_t>(who.pid));
  status->set_uid(who.uid);
  status->set_gid(who.gid);
  status->set_age_ms(AgeMs(session.opened_at()));
  *status->mutable_objects() = session.Counts();
  status->set_work_requests(counters.send_wrs + counters.recv_wrs);
  status->set_completions(counters.completions);
  status->set_completions_in_error(counters.completion_errors);
  status->set_bytes_sent(counters.send_bytes);
  status->set_bytes_received(counters.recv_bytes);
  for (const uint32_t index : session.engine_indices()) status->add_engines(index);
}

void FillEngine(const engine::EngineProxy& engine, v1::EngineStatus* status) {
  const engine::EngineStats stats = engine.Stats();
  status->set_index(engine.index());
  status->set_state(stats.sleeping ? "sleeping" : "spinning");
  status->set_work_requests(stats.work_requests);
  status->set_completions(stats.completions);
  status->set_wakeups(stats.wakeups);
  status->set_busy_ns(stats.busy_ns);
}

void FillUser(const session::UserQuota& quota, size_t sessions, v1::UserStatus* status) {
  status->set_uid(quota.uid());
  status->set_sessions(static_cast<uint32_t>(sessions));
  status->set_refusals(quota.refusals());
  for (size_t i = 0; i < session::kResourceCount; ++i) {
    const auto resource = static_cast<session::Resource>(i);
    v1::QuotaUse* use = status->add_quotas();
    use->set_limit(session::LimitName(resource));
    use->set_in_use(quota.in_use(resource));
    if (quota.limits()) use->set_value(session::LimitOf(*quota.limits(), resource));
  }
}

}  // namespace

void AddCounts(const v1::ObjectCounts& counts, v1::ObjectCounts* total) {
  total->set_pds(total->pds() + counts.pds());
  total->set_regions(total->regions() + counts.regions());
  total->set_pools(total->pools() + counts.pools());
  total->set_pool_bytes(total->pool_bytes() + counts.pool_bytes());
  total->set_completion_channels(total->completion_channels() + counts.completion_channels());
  total->set_cqs(total->cqs() + counts.cqs());
  total->set_qps(total->qps() + counts.qps());
  total->set_srqs(total->srqs() + counts.srqs());
  total->set_ahs(total->ahs() + counts.ahs());
  total->set_mws(total->mws() + counts.mws());
  total->set_multicasts(total->multicasts() + counts.multicasts());
  total->set_event_channels(total->event_channels() + counts.event_channels());
  total->set_cm_ids(total->cm_ids() + counts.cm_ids());
  total->set_arena_bytes(total->arena_bytes() + counts.arena_bytes());
}

Admin::Admin(AdminFacts facts, const Inventory* inventory, const session::DeviceList* devices,
             SessionRegistry* registry, TurnQueue* turns)
    : facts_(std::move(facts)),
      inventory_(inventory),
      devices_(devices),
      registry_(registry),
      turns_(turns) {}

void Admin::ForEachVisible(const Caller& caller,
                           const std::function<void(session::Session&)>& visit) const {
  const View view(caller);
  registry_->ForEach([&](session::Session& session) {
    if (view.Shows(session)) visit(session);
  });
}

template <typename Request, typename Reply>
void Admin::MakePage(const Caller& caller, const Request& request, Reply* reply, AddPart add,
                     Done done) {
  const absl::StatusOr<ListCursor> from = ParsePage(request.page());
  if (!from.ok()) return done(from.status());
  turns_->Add([this, view = View(caller), from = *from, reply, add = std::move(add),
               done = std::move(done)] {
    if (const std::optional<ListCursor> next = AddPage(view, from, add))
      reply->set_next_page(ToPage(*next));
    done(absl::OkStatus());
  });
}

std::optional<ListCursor> Admin::AddPage(const View& view, const ListCursor& from,
                                         const AddPart& add) const {
  session::ListBudget budget;
  std::optional<ListCursor> next;
  registry_->ForEachFrom(from.session_id, [&](session::Session& session) {
    const uint64_t id = session.identity().id;
    ListCursor at{id, id == from.session_id ? from.slot : 0};
    budget.Look();
    const bool done = !view.Shows(session) || (!budget.spent() && add(session, &at.slot, &budget));
    if (!done) next = at;
    return done;
  });
  return next;
}

std::vector<IpAddress> Admin::OwnAddresses() const {
  std::vector<IpAddress> addresses;
  for (uint32_t index = 0; index < devices_->end(); ++index) {
    const device::Device* device = devices_->Find(index);
    if (device == nullptr) continue;
    for (const device::GidEntry& gid : device->Gids()) addresses.push_back(gid.address);
  }
  return addresses;
}

void Admin::AddDevices(const Caller& caller,
                       google::protobuf::RepeatedPtrField<v1::DeviceStatus>* out) const {
  std::vector<uint32_t> qps(devices_->end());
  ForEachVisible(caller, [&qps](session::Session& session) { session.AddQpsByDevice(&qps); });
  for (uint32_t index = 0; index < devices_->end(); ++index) {
    const device::Device* device = devices_->Find(index);
    if (device == nullptr) continue;
    v1::DeviceStatus* status = out->Add();
    session::ToMessage(index, *device, status->mutable_device());
    status->set_state("ready");
    status->set_qps(qps[index]);
    for (const device::CounterValue& counter : device->Counters()) {
      v1::Counter* message = status->add_counters();
      message->set_name(counter.name);
      message->set_unit(counter.unit);
      message->set_value(counter.value);
    }
  }
  for (const MissingDevice& missing : inventory_->Missing()) {
    v1::DeviceStatus* status = out->Add();
    status->mutable_device()->set_index(shm::kNoDevice);
    status->mutable_device()->set_name(missing.what);
    status->mutable_device()->set_kind(missing.kind);
    status->set_state(missing.why);
  }
}

void Admin::GetStatus(const Caller& caller, const v1::GetStatusRequest&, v1::GetStatusReply* reply,
                      Done done) {
  reply->set_version(kVersion);
  reply->set_pid(static_cast<uint32_t>(getpid()));
  reply->set_uptime_ms(AgeMs(facts_.started_at_ns));
  reply->set_run_dir(facts_.run_dir);
  reply->set_config_file(facts_.config_file);
  reply->set_metrics_address(facts_.metrics_address);
  uint32_t sessions = 0;
  ForEachVisible(caller, [&](session::Session& session) {
    ++sessions;
    AddCounts(session.Counts(), reply->mutable_objects());
  });
  reply->set_sessions(sessions);
  for (const engine::EngineProxy* engine : inventory_->engines)
    FillEngine(*engine, reply->add_engines());
  AddDevices(caller, reply->mutable_devices());
  reply->set_privileged_view(caller.privileged);
  const View view(caller);
  registry_->ForEachUser([&](const session::UserQuota& quota, size_t of_user) {
    if (view.Shows(quota.uid()) && reply->users_size() < kMostUsersShown)
      FillUser(quota, of_user, reply->add_users());
  });
  done(absl::OkStatus());
}

void Admin::ListDevices(const Caller& caller, const v1::ListDevicesRequest&,
                        v1::ListDevicesReply* reply, Done done) {
  AddDevices(caller, reply->mutable_devices());
  done(absl::OkStatus());
}

void Admin::ListSessions(const Caller& caller, const v1::ListSessionsRequest& request,
                         v1::ListSessionsReply* reply, Done done) {
  const auto add = [reply](session::Session& session, uint32_t*, session::ListBudget* budget) {
    budget->Entry();
    FillSession(session, reply->add_sessions());
    return true;
  };
  MakePage(caller, request, reply, add, std::move(done));
}

void Admin::ListConnections(const Caller& caller, const v1::ListConnectionsRequest& request,
                            v1::ListConnectionsReply* reply, Done done) {
  // One more than there are answers to come, so that it cannot reach 0 before all were asked.
  auto left = std::make_shared<size_t>(1);
  const auto answer = [left, done] {
    if (--*left == 0) done(absl::OkStatus());
  };
  const auto add = [reply, left, answer, own_addresses = OwnAddresses()](
                       session::Session& session, uint32_t* slot, session::ListBudget* budget) {
    ++*left;
    return session.AddConnections(slot, budget, own_addresses, reply, answer);
  };
  MakePage(caller, request, reply, add, [done, answer](const absl::Status& status) {
    if (!status.ok()) return done(status);
    answer();
  });
}

void Admin::ListPools(const Caller& caller, const v1::ListPoolsRequest& request,
                      v1::ListPoolsReply* reply, Done done) {
  const auto add = [reply](session::Session& session, uint32_t* slot, session::ListBudget* budget) {
    return session.AddPools(slot, budget, reply);
  };
  MakePage(caller, request, reply, add, std::move(done));
}

}  // namespace rdmad::control
