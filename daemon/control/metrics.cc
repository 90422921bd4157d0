#include "daemon/control/metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/admin.h"
#include "daemon/control/process_stats.h"
#include "daemon/control/version.h"
#include "daemon/session/user_quota.h"

namespace rdmad::control {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr double kNsPerSecond = 1e9;

// Families in the order of their first use.
class Families {
 public:
  void Counter(const std::string& name, const char* help, double value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = value;
    Family(name, help, MetricType::Counter).metric.push_back(std::move(metric));
  }
  void Gauge(const std::string& name, const char* help, double value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.gauge.value = value;
    Family(name, help, MetricType::Gauge).metric.push_back(std::move(metric));
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  MetricFamily& Family(const std::string& name, const char* help, MetricType type) {
    const auto [found, added] = index_.emplace(name, families_.size());
    if (added) {
      MetricFamily family;
      family.name = name;
      family.help = help;
      family.type = type;
      families_.push_back(std::move(family));
    }
    return families_[found->second];
  }

  std::vector<MetricFamily> families_;
  std::map<std::string, size_t> index_;
};

double Number(uint64_t value) {
  return static_cast<double>(value);
}

// ibv_wc_status, as labels.
const char* WcStatusName(size_t status) {
  static constexpr std::array<const char*, engine::kWcStatusCount> kNames = {"success",
                                                                             "loc_len_err",
                                                                             "loc_qp_op_err",
                                                                             "loc_eec_op_err",
                                                                             "loc_prot_err",
                                                                             "wr_flush_err",
                                                                             "mw_bind_err",
                                                                             "bad_resp_err",
                                                                             "loc_access_err",
                                                                             "rem_inv_req_err",
                                                                             "rem_access_err",
                                                                             "rem_op_err",
                                                                             "retry_exc_err",
                                                                             "rnr_retry_exc_err",
                                                                             "loc_rdd_viol_err",
                                                                             "rem_inv_rd_req_err",
                                                                             "rem_abort_err",
                                                                             "inv_eecn_err",
                                                                             "inv_eec_state_err",
                                                                             "fatal_err",
                                                                             "resp_timeout_err",
                                                                             "general_err",
                                                                             "tm_err",
                                                                             "tm_rndv_incomplete"};
  return kNames[status];
}

void AddDaemon(const MetricsSources& sources, Families* out) {
  out->Gauge("rdmad_build_info", "Always 1; its label says which version runs.", 1,
             {{"version", kVersion}});
  const SessionRegistry& registry = *sources.registry;
  out->Gauge("rdmad_sessions", "Applications that are attached now.", Number(registry.count()));
  out->Counter("rdmad_sessions_opened_total", "Applications that have attached since the start.",
               Number(registry.opened_total()));
  out->Counter(
      "rdmad_sessions_ended_by_fault_total",
      "Sessions that rdmad ended because of what their client did to shared memory or channels.",
      Number(registry.ended_by_fault_total()));
  if (sources.attach != nullptr) {
    const AttachCounters& attach = sources.attach->counters();
    out->Counter("rdmad_attach_connections_total", "Connections taken on attach.sock.",
                 Number(attach.accepted));
    const char* help = "Connections on attach.sock that did not become a session, by reason.";
    out->Counter("rdmad_attach_failures_total", help, Number(attach.refused),
                 {{"reason", "refused"}});
    out->Counter("rdmad_attach_failures_total", help, Number(attach.malformed),
                 {{"reason", "malformed"}});
    out->Counter("rdmad_attach_failures_total", help, Number(attach.timed_out),
                 {{"reason", "silent"}});
    out->Counter("rdmad_attach_failures_total", help, Number(attach.accept_errors),
                 {{"reason", "accept"}});
  }
  if (sources.rpc != nullptr) {
    const RpcCounters& rpc = sources.rpc->counters();
    out->Counter("rdmad_rpc_connections_total", "gRPC connections taken on rdmad.sock.",
                 Number(rpc.connections));
    out->Counter("rdmad_rpc_connections_refused_total",
                 "Connections on rdmad.sock that policy or limits refused.",
                 Number(rpc.connections_refused));
    out->Counter("rdmad_rpc_calls_total", "gRPC calls.", Number(rpc.calls));
    out->Counter("rdmad_rpc_calls_failed_total", "gRPC calls answered with an error.",
                 Number(rpc.calls_failed));
    out->Counter("rdmad_rpc_calls_denied_total",
                 "gRPC calls that no session could be found for, or another user's.",
                 Number(rpc.calls_without_session + rpc.calls_of_strangers));
  }
}

void AddProcess(Families* out) {
  const ProcessStats stats = ReadProcessStats();
  out->Counter("process_cpu_seconds_total", "Processor time of rdmad, user and system.",
               stats.cpu_seconds);
  out->Gauge("process_resident_memory_bytes", "Memory of rdmad that is resident, pools included.",
             Number(stats.resident_bytes));
  out->Gauge("process_virtual_memory_bytes", "Address space of rdmad.",
             Number(stats.virtual_bytes));
  out->Gauge("process_open_fds", "Descriptors that rdmad has open.", Number(stats.open_fds));
  out->Gauge("process_max_fds", "Descriptors that rdmad may open.", Number(stats.max_fds));
  out->Gauge("process_start_time_seconds", "When rdmad started, in seconds since 1970.",
             stats.start_time_seconds);
}

void AddEngines(const MetricsSources& sources, Families* out) {
  std::vector<double> sessions(sources.inventory->engines.size());
  sources.registry->ForEach([&sessions](session::Session& session) {
    for (const uint32_t index : session.engine_indices()) ++sessions[index];
  });
  for (const engine::EngineProxy* engine : sources.inventory->engines) {
    const engine::EngineStats stats = engine->Stats();
    const Labels labels = {{"engine", absl::StrCat(engine->index())}};
    out->Gauge("rdmad_engine_sessions", "Applications that the engine serves now.",
               sessions[engine->index()], labels);
    out->Gauge("rdmad_engine_sleeping",
               "1 while the engine's thread sleeps, 0 while it looks for work.",
               stats.sleeping ? 1 : 0, labels);
    out->Counter("rdmad_engine_work_requests_total", "Work requests taken from clients' queues.",
                 Number(stats.work_requests), labels);
    out->Counter("rdmad_engine_completions_total", "Completions written to clients' queues.",
                 Number(stats.completions), labels);
    out->Counter("rdmad_engine_wakeups_total", "Times the engine's thread woke up.",
                 Number(stats.wakeups), labels);
    out->Counter("rdmad_engine_busy_seconds_total", "Time in turns that did work.",
                 Number(stats.busy_ns) / kNsPerSecond, labels);
    out->Counter("rdmad_engine_turns_total", "Turns of the engine's thread.", Number(stats.turns),
                 labels);
    out->Counter("rdmad_engine_commands_delayed_total",
                 "Commands that found the command ring full and waited.",
                 Number(stats.commands_delayed), labels);
    out->Counter("rdmad_engine_events_delayed_total",
                 "Turns that ended with events for which the ring had no room.",
                 Number(stats.events_delayed), labels);
    out->Counter("rdmad_engine_events_dropped_total",
                 "Events of no known queue pair that found no room.", Number(stats.events_dropped),
                 labels);
  }
}

void AddCounter(const std::string& prefix, const device::CounterValue& counter,
                const Labels& labels, Families* out) {
  out->Counter(absl::StrCat(prefix, counter.name, "_total"), counter.help, Number(counter.value),
               labels);
}

void AddDevices(const MetricsSources& sources, Families* out) {
  std::vector<uint32_t> qps(sources.devices->end());
  sources.registry->ForEach([&qps](session::Session& session) { session.AddQpsByDevice(&qps); });
  for (uint32_t index = 0; index < sources.devices->end(); ++index) {
    const device::Device* device = sources.devices->Find(index);
    if (device == nullptr) continue;
    const Labels labels = {{"device", device->name()}};
    out->Gauge(
        "rdmad_device_info", "Always 1; its labels say what the device is.", 1,
        {{"device", device->name()}, {"kind", device->kind()}, {"netdev", device->netdev()}});
    out->Gauge("rdmad_device_port_active", "1 while the device's port can carry packets.",
               device->QueryPort().active() ? 1 : 0, labels);
    out->Gauge("rdmad_device_queue_pairs", "Queue pairs that exist on the device.", qps[index],
               labels);
    for (const device::CounterValue& counter : device->Counters())
      AddCounter("rdmad_device_", counter, labels, out);
  }
  out->Gauge("rdmad_devices_missing",
             "Devices that were configured, or found, and could not be used.",
             Number(sources.inventory->Missing().size()));
  for (const SharedCounters& shared : sources.inventory->shared_counters) {
    for (const device::CounterValue& counter : shared.read()) {
      AddCounter(absl::StrCat("rdmad_", shared.kind, "_"), counter, {}, out);
    }
  }
}

void AddSession(const Labels& labels, const v1::ObjectCounts& objects,
                const engine::SessionCounters& counters, uint64_t quota_refusals, Families* out) {
  const auto with = [&labels](const char* name, const char* value) {
    Labels more = labels;
    more.push_back({name, value});
    return more;
  };
  const char* help = "Objects that the session holds, by kind.";
  const std::pair<const char*, uint32_t> kinds[] = {
      {"pd", objects.pds()},
      {"region", objects.regions()},
      {"pool", objects.pools()},
      {"completion_channel", objects.completion_channels()},
      {"cq", objects.cqs()},
      {"qp", objects.qps()},
      {"srq", objects.srqs()},
      {"ah", objects.ahs()},
      {"mw", objects.mws()},
      {"multicast", objects.multicasts()},
      {"event_channel", objects.event_channels()},
      {"cm_id", objects.cm_ids()},
  };
  for (const auto& [kind, count] : kinds)
    out->Gauge("rdmad_session_objects", help, count, with("kind", kind));
  out->Gauge("rdmad_session_pool_bytes", "Memory of the session's pools.",
             Number(objects.pool_bytes()), labels);
  out->Gauge("rdmad_session_arena_bytes", "Memory behind the session's queues.",
             Number(objects.arena_bytes()), labels);
  help = "Work requests taken from the session's queues.";
  out->Counter("rdmad_session_work_requests_total", help, Number(counters.send_wrs),
               with("queue", "send"));
  out->Counter("rdmad_session_work_requests_total", help, Number(counters.recv_wrs),
               with("queue", "recv"));
  out->Counter("rdmad_session_sent_bytes_total",
               "Payload named by the send work requests that were taken.",
               Number(counters.send_bytes), labels);
  out->Counter("rdmad_session_received_bytes_total", "Payload of receive completions.",
               Number(counters.recv_bytes), labels);
  for (size_t status = 0; status < engine::kWcStatusCount; ++status) {
    // Success always, the others once they occur: most never do.
    if (status != 0 && counters.completions_by_status[status] == 0) continue;
    out->Counter("rdmad_session_completions_total", "Completions by status, as in ibv_wc_status.",
                 Number(counters.completions_by_status[status]),
                 with("status", WcStatusName(status)));
  }
  out->Counter("rdmad_session_completions_dropped_total",
               "Completions for a queue that had overrun.", Number(counters.completions_dropped),
               labels);
  out->Counter("rdmad_session_malformed_work_requests_total",
               "Work requests that no correct library posts.", Number(counters.malformed_wrs),
               labels);
  out->Counter("rdmad_session_doorbells_total", "Queues that were found rung.",
               Number(counters.doorbells), labels);
  out->Counter("rdmad_session_completion_events_total", "Events written to completion channels.",
               Number(counters.channel_events), labels);
  out->Counter("rdmad_session_completion_channel_full_total",
               "Completion events that waited for room in their pipe.",
               Number(counters.channel_full), labels);
  out->Counter("rdmad_session_quota_refusals_total",
               "Objects refused because a limit of the session was reached.",
               Number(quota_refusals), labels);
}

void AddSessions(const SessionRegistry& registry, Families* out) {
  size_t shown = 0;
  v1::ObjectCounts other_objects;
  engine::SessionCounters other_counters;
  uint64_t other_refusals = 0;
  registry.ForEach([&](session::Session& session) {
    if (shown < kMaxSessionsShown) {
      ++shown;
      AddSession(
          {{"session", absl::StrCat(session.identity().id)}, {"client", session.identity().name}},
          session.Counts(), session.Counters(), session.quota_refusals(), out);
      return;
    }
    AddCounts(session.Counts(), &other_objects);
    other_counters += session.Counters();
    other_refusals += session.quota_refusals();
  });
  if (shown == kMaxSessionsShown) {
    AddSession({{"session", "others"}, {"client", ""}}, other_objects, other_counters,
               other_refusals, out);
  }
}

void AddUsers(const SessionRegistry& registry, Families* out) {
  size_t shown = 0;
  registry.ForEachUser([&](const session::UserQuota& quota, size_t sessions) {
    if (++shown > kMaxUsersShown) return;
    const std::string uid = absl::StrCat(quota.uid());
    out->Gauge("rdmad_user_sessions", "Applications of the user that are attached now.",
               Number(sessions), {{"uid", uid}});
    out->Counter("rdmad_user_quota_refusals_total",
                 "Objects refused because a limit of the user was reached, since the first of the "
                 "sessions that the user has now.",
                 Number(quota.refusals()), {{"uid", uid}});
    for (size_t i = 0; i < session::kResourceCount; ++i) {
      const auto resource = static_cast<session::Resource>(i);
      const Labels labels = {{"uid", uid}, {"limit", session::LimitName(resource)}};
      out->Gauge("rdmad_user_quota_in_use", "What the user's sessions hold, by limit.",
                 Number(quota.in_use(resource)), labels);
      if (!quota.limits()) continue;
      out->Gauge("rdmad_user_quota_limit", "What they may hold.",
                 Number(session::LimitOf(*quota.limits(), resource)), labels);
    }
  });
}

}  // namespace

std::vector<MetricFamily> Metrics::Collect() const {
  Families families;
  AddDaemon(sources_, &families);
  AddProcess(&families);
  AddEngines(sources_, &families);
  AddDevices(sources_, &families);
  AddSessions(*sources_.registry, &families);
  AddUsers(*sources_.registry, &families);
  return families.Take();
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(Collect());
}

}  // namespace rdmad::control
