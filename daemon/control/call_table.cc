#include "daemon/control/call_table.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/admin.h"

namespace rdmad::control {
namespace {

using session::Session;

constexpr char kPackage[] = "/rdmad.v1.";

// A call under way: the messages live until its end.
template <typename Request, typename Reply>
struct Call {
  Request request;
  Reply reply;
  CallDone done;

  static std::shared_ptr<Call> Parse(const std::string& bytes, CallDone done) {
    auto call = std::make_shared<Call>();
    if (!call->request.ParseFromString(bytes)) {
      done(absl::InvalidArgumentError(
               absl::StrCat("the bytes are no ", call->request.GetTypeName())),
           "");
      return nullptr;
    }
    call->done = std::move(done);
    return call;
  }
  void Finish(const absl::Status& status) {
    done(status, status.ok() ? reply.SerializeAsString() : std::string());
  }
};

// A method of Session as a handler.
template <typename Request, typename Reply>
auto SessionHandler(void (Session::*method)(const Request&, Reply*, Session::Done)) {
  return [method](const Caller& caller, const std::string& bytes, CallDone done) {
    auto call = Call<Request, Reply>::Parse(bytes, std::move(done));
    if (call == nullptr) return;
    (caller.session->*method)(call->request, &call->reply,
                              [call](const absl::Status& status) { call->Finish(status); });
  };
}

// A method of Admin as a handler.
template <typename Request, typename Reply>
auto AdminHandler(Admin* admin,
                  void (Admin::*method)(const Caller&, const Request&, Reply*, Session::Done)) {
  return [admin, method](const Caller& caller, const std::string& bytes, CallDone done) {
    auto call = Call<Request, Reply>::Parse(bytes, std::move(done));
    if (call == nullptr) return;
    (admin->*method)(caller, call->request, &call->reply,
                     [call](const absl::Status& status) { call->Finish(status); });
  };
}

}  // namespace

CallTable::CallTable(Admin* admin) {
  AddSessionCalls();
  AddCmCalls();
  AddAdminCalls(admin);
}

#define RD_SESSION_CALL(service, method) \
  handlers_[absl::StrCat(kPackage, #service, "/", #method)] = SessionHandler(&Session::method)

void CallTable::AddSessionCalls() {
  RD_SESSION_CALL(SessionService, GetSession);

  RD_SESSION_CALL(MemoryService, CreatePool);
  RD_SESSION_CALL(MemoryService, DestroyPool);
  RD_SESSION_CALL(MemoryService, RegisterRegion);
  RD_SESSION_CALL(MemoryService, DeregisterRegion);

  RD_SESSION_CALL(VerbsService, QueryDevices);
  RD_SESSION_CALL(VerbsService, AllocPd);
  RD_SESSION_CALL(VerbsService, DeallocPd);
  RD_SESSION_CALL(VerbsService, CreateCompletionChannel);
  RD_SESSION_CALL(VerbsService, DestroyCompletionChannel);
  RD_SESSION_CALL(VerbsService, CreateCq);
  RD_SESSION_CALL(VerbsService, DestroyCq);
  RD_SESSION_CALL(VerbsService, CreateQp);
  RD_SESSION_CALL(VerbsService, ModifyQp);
  RD_SESSION_CALL(VerbsService, QueryQp);
  RD_SESSION_CALL(VerbsService, DestroyQp);
  RD_SESSION_CALL(VerbsService, CreateSrq);
  RD_SESSION_CALL(VerbsService, ModifySrq);
  RD_SESSION_CALL(VerbsService, QuerySrq);
  RD_SESSION_CALL(VerbsService, DestroySrq);
  RD_SESSION_CALL(VerbsService, CreateAh);
  RD_SESSION_CALL(VerbsService, DestroyAh);
  RD_SESSION_CALL(VerbsService, AllocMw);
  RD_SESSION_CALL(VerbsService, DeallocMw);
  RD_SESSION_CALL(VerbsService, AttachMulticast);
  RD_SESSION_CALL(VerbsService, DetachMulticast);
}

void CallTable::AddCmCalls() {
  RD_SESSION_CALL(CmService, CreateEventChannel);
  RD_SESSION_CALL(CmService, DestroyEventChannel);
  RD_SESSION_CALL(CmService, CreateId);
  RD_SESSION_CALL(CmService, DestroyId);
  RD_SESSION_CALL(CmService, MigrateId);
  RD_SESSION_CALL(CmService, SetOption);
  RD_SESSION_CALL(CmService, BindAddr);
  RD_SESSION_CALL(CmService, ResolveAddr);
  RD_SESSION_CALL(CmService, ResolveRoute);
  RD_SESSION_CALL(CmService, Listen);
  RD_SESSION_CALL(CmService, SetQp);
  RD_SESSION_CALL(CmService, Connect);
  RD_SESSION_CALL(CmService, Accept);
  RD_SESSION_CALL(CmService, Reject);
  RD_SESSION_CALL(CmService, Establish);
  RD_SESSION_CALL(CmService, Disconnect);
  RD_SESSION_CALL(CmService, Notify);
  RD_SESSION_CALL(CmService, InitQpAttr);
  RD_SESSION_CALL(CmService, JoinMulticast);
  RD_SESSION_CALL(CmService, LeaveMulticast);
}

#undef RD_SESSION_CALL

void CallTable::AddAdminCalls(Admin* admin) {
  const std::string service = absl::StrCat(kPackage, "AdminService/");
  handlers_[service + "GetStatus"] = AdminHandler(admin, &Admin::GetStatus);
  handlers_[service + "ListDevices"] = AdminHandler(admin, &Admin::ListDevices);
  handlers_[service + "ListSessions"] = AdminHandler(admin, &Admin::ListSessions);
  handlers_[service + "ListConnections"] = AdminHandler(admin, &Admin::ListConnections);
  handlers_[service + "ListPools"] = AdminHandler(admin, &Admin::ListPools);
}

void CallTable::Invoke(const std::string& method, const Caller& caller, const std::string& request,
                       CallDone done) const {
  auto found = handlers_.find(method);
  if (found == handlers_.end()) {
    return done(absl::UnimplementedError(
                    "rdmad has no such call; install matching versions of rdmad and librdmad"),
                "");
  }
  found->second(caller, request, std::move(done));
}

std::vector<std::string> CallTable::Methods() const {
  std::vector<std::string> methods;
  for (const auto& [name, handler] : handlers_) methods.push_back(name);
  std::sort(methods.begin(), methods.end());
  return methods;
}

}  // namespace rdmad::control
