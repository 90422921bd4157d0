#include "client/rdmactl/show.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/rdmactl/table.h"
#include "client/sdk/session.h"
#include "client/sdk/version.h"
#include "proto/rdmad/v1/attach.pb.h"

namespace rdmad::rdmactl {
namespace {

namespace rpc = sdk::rpc;

template <typename Method>
absl::StatusOr<typename Method::Reply> Ask(const Client& client, const Method& method) {
  return client.state()->session()->Call(method, {});
}

// A list, which comes in pages, as one reply.
template <typename Method>
absl::StatusOr<typename Method::Reply> AskForAll(const Client& client, const Method& method) {
  typename Method::Request request;
  typename Method::Reply all;
  do {
    const absl::StatusOr<typename Method::Reply> page = client.state()->session()->Call(method, request);
    if (!page.ok()) return page.status();
    all.clear_next_page();
    all.MergeFrom(*page);
    request.set_page(all.next_page());
  } while (all.has_next_page());
  return all;
}

absl::Status PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
    return absl::InternalError("the answer could not be written as JSON");
  }
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

std::string Number(uint64_t value) { return std::to_string(value); }

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

std::string PortState(uint32_t state) {
  switch (state) {
    case 1:
      return "down";
    case 2:
      return "init";
    case 3:
      return "armed";
    case 4:
      return "active";
    default:
      return "unknown";
  }
}

uint32_t MtuOf(uint32_t code) { return code == 0 || code > 5 ? 0 : 128u << code; }

Table DeviceTable(const google::protobuf::RepeatedPtrField<v1::DeviceStatus>& devices) {
  Table table({"DEVICE", "KIND", "NETDEV", "STATE", "PORT", "MTU", "QPS", "ADDRESSES"});
  for (const v1::DeviceStatus& status : devices) {
    std::string addresses;
    for (const v1::Gid& gid : status.device().gids()) {
      absl::StrAppend(&addresses, addresses.empty() ? "" : " ", gid.text());
    }
    table.Add({status.device().name(), status.device().kind(), OrDash(status.device().netdev()), status.state(),
               PortState(status.device().port_state()), Number(MtuOf(status.device().active_mtu())),
               Number(status.qps()), OrDash(addresses)});
  }
  return table;
}

// The limit that a user has used most of, for a user who has any.
std::string Fullest(const v1::UserStatus& user) {
  const v1::QuotaUse* fullest = nullptr;
  double most = 0;
  for (const v1::QuotaUse& use : user.quotas()) {
    if (!use.has_value()) continue;
    const double part = static_cast<double>(use.in_use()) / static_cast<double>(std::max<uint64_t>(use.value(), 1));
    if (fullest != nullptr && part <= most) continue;
    fullest = &use;
    most = part;
  }
  if (fullest == nullptr) return "not bounded";
  return absl::StrCat(fullest->limit(), " ", fullest->in_use(), " of ", fullest->value());
}

Table UserTable(const google::protobuf::RepeatedPtrField<v1::UserStatus>& users) {
  Table table({"USER", "SESSIONS", "REFUSED", "NEAREST LIMIT"});
  for (const v1::UserStatus& user : users) {
    table.Add({Number(user.uid()), Number(user.sessions()), Number(user.refusals()), Fullest(user)});
  }
  return table;
}

}  // namespace

absl::Status ShowStatus(const Client& client, bool json) {
  const absl::StatusOr<v1::GetStatusReply> reply = Ask(client, rpc::kGetStatus);
  if (!reply.ok()) return reply.status();
  if (json) return PrintJson(*reply);
  const v1::ObjectCounts& objects = reply->objects();
  Print(absl::StrCat("rdmad ", reply->version(), "  pid ", reply->pid(), "  up ", Age(reply->uptime_ms()), "\n",
                     "run dir   ", reply->run_dir(), "\n",
                     "config    ", reply->config_file().empty() ? "built-in defaults" : reply->config_file(), "\n",
                     "metrics   ", reply->metrics_address().empty() ? "off" : reply->metrics_address(), "\n",
                     "sessions  ", reply->sessions(), reply->privileged_view() ? "" : " (only your own are counted below)",
                     "\n"));
  Print(absl::StrCat("objects   pds ", objects.pds(), "  regions ", objects.regions(), "  pools ", objects.pools(), " (",
                     Bytes(objects.pool_bytes()), ")  cqs ", objects.cqs(), "  qps ", objects.qps(), "  cm ids ",
                     objects.cm_ids(), "  channels ", objects.completion_channels() + objects.event_channels(),
                     "  rings ", Bytes(objects.arena_bytes()), "\n\n"));
  Table engines({"ENGINE", "STATE", "WORK REQUESTS", "COMPLETIONS", "WAKEUPS", "BUSY"});
  for (const v1::EngineStatus& engine : reply->engines()) {
    engines.Add({Number(engine.index()), engine.state(), Number(engine.work_requests()), Number(engine.completions()),
                 Number(engine.wakeups()), Age(engine.busy_ns() / 1'000'000)});
  }
  Print(engines.ToString() + "\n");
  Print(UserTable(reply->users()).ToString() + "\n");
  Print(DeviceTable(reply->devices()).ToString());
  return absl::OkStatus();
}

absl::Status ShowDevices(const Client& client, bool json) {
  const absl::StatusOr<v1::ListDevicesReply> reply = Ask(client, rpc::kListDevices);
  if (!reply.ok()) return reply.status();
  if (json) return PrintJson(*reply);
  Print(DeviceTable(reply->devices()).ToString());
  for (const v1::DeviceStatus& status : reply->devices()) {
    const v1::Device& device = status.device();
    Print(absl::StrCat("\n", device.name(), ": limits  qp ", device.max_qp(), "  qp_wr ", device.max_qp_wr(), "  sge ",
                       device.max_sge(), "  inline ", device.max_inline_bytes(), " B  cq ", device.max_cq(), "  cqe ",
                       device.max_cqe(), "  mr ", device.max_mr(), " (", Bytes(device.max_mr_bytes()), " each)  message ",
                       Bytes(device.max_msg_bytes()), "  reads in flight ", device.max_qp_rd_atom(), "  pd ",
                       device.max_pd(), "\n"));
    if (status.counters().empty()) continue;
    Table counters({"COUNTER", "VALUE", "UNIT"});
    for (const v1::Counter& counter : status.counters()) {
      if (counter.value() != 0) counters.Add({counter.name(), Number(counter.value()), counter.unit()});
    }
    if (!counters.empty()) Print(counters.ToString());
  }
  return absl::OkStatus();
}

absl::Status ShowSessions(const Client& client, bool json) {
  const absl::StatusOr<v1::ListSessionsReply> reply = AskForAll(client, rpc::kListSessions);
  if (!reply.ok()) return reply.status();
  if (json) return PrintJson(*reply);
  Table table({"SESSION", "NAME", "PID", "UID", "AGE", "ENGINES", "QPS", "CM IDS", "REGIONS", "POOLS", "POOL BYTES",
               "WRS", "ERRORS", "SENT", "RECEIVED"});
  for (const v1::SessionStatus& session : reply->sessions()) {
    const v1::ObjectCounts& objects = session.objects();
    table.Add({Number(session.session_id()), OrDash(session.name()), Number(session.pid()), Number(session.uid()),
               Age(session.age_ms()), absl::StrJoin(session.engines(), ","), Number(objects.qps()),
               Number(objects.cm_ids()), Number(objects.regions()), Number(objects.pools()), Bytes(objects.pool_bytes()), Number(session.work_requests()),
               Number(session.completions_in_error()), Bytes(session.bytes_sent()), Bytes(session.bytes_received())});
  }
  Print(table.ToString());
  return absl::OkStatus();
}

absl::Status ShowConnections(const Client& client, bool json) {
  const absl::StatusOr<v1::ListConnectionsReply> reply = AskForAll(client, rpc::kListConnections);
  if (!reply.ok()) return reply.status();
  if (json) return PrintJson(*reply);
  Table table({"SESSION", "STATE", "LOCAL", "PEER", "DEVICE", "QPN", "PEER QPN", "QP STATE", "MTU", "AGE", "PATH"});
  for (const v1::ConnectionStatus& connection : reply->connections()) {
    table.Add({Number(connection.session_id()), connection.state(), OrDash(connection.local()),
               OrDash(connection.peer()), OrDash(connection.device()), Number(connection.qpn()),
               Number(connection.remote_qpn()), OrDash(connection.qp_state()), Number(connection.path_mtu_bytes()),
               Age(connection.age_ms()), connection.same_daemon() ? "same daemon" : "wire"});
  }
  Print(table.ToString());
  return absl::OkStatus();
}

absl::Status ShowPools(const Client& client, bool json) {
  const absl::StatusOr<v1::ListPoolsReply> reply = AskForAll(client, rpc::kListPools);
  if (!reply.ok()) return reply.status();
  if (json) return PrintJson(*reply);
  Table table({"SESSION", "NAME", "SIZE", "PAGES", "REGIONS"});
  for (const v1::PoolStatus& pool : reply->pools()) {
    table.Add({Number(pool.session_id()), OrDash(pool.name()), Bytes(pool.size_bytes()), Bytes(pool.page_bytes()),
               Number(pool.regions())});
  }
  Print(table.ToString());
  return absl::OkStatus();
}

absl::Status ShowVersion(const AttachOptions& options, bool json) {
  const absl::StatusOr<Client> client = Client::Attach(options);
  const std::string daemon = client.ok() ? client->daemon_version() : "";
  if (json) {
    Print(absl::StrCat("{\n \"rdmactl\": \"", sdk::kVersion, "\",\n \"protocol\": ",
                       static_cast<int>(v1::PROTOCOL_VERSION_CURRENT), ",\n \"rdmad\": ",
                       client.ok() ? absl::StrCat("\"", daemon, "\"") : "null", "\n}\n"));
  } else {
    Print(absl::StrCat("rdmactl ", sdk::kVersion, "  protocol ", static_cast<int>(v1::PROTOCOL_VERSION_CURRENT), "\n",
                       "rdmad   ", client.ok() ? absl::StrCat(daemon, "  at ", client->run_dir()) : "not reachable",
                       "\n"));
  }
  // Not running is an answer; not being allowed to ask is not.
  return client.ok() || absl::IsUnavailable(client.status()) ? absl::OkStatus() : client.status();
}

}  // namespace rdmad::rdmactl
