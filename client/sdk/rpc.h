// The daemon's calls, typed: what to send, what comes back, and the name under which gRPC knows it.
#pragma once

#include "proto/rdmad/v1/admin.pb.h"
#include "proto/rdmad/v1/cm.pb.h"
#include "proto/rdmad/v1/memory.pb.h"
#include "proto/rdmad/v1/session.pb.h"
#include "proto/rdmad/v1/verbs.pb.h"

namespace rdmad::sdk {

template <typename RequestType, typename ReplyType>
struct Rpc {
  using Request = RequestType;
  using Reply = ReplyType;
  const char* path;
};

namespace rpc {

#define SDK_RPC(service, method) \
  inline constexpr Rpc<v1::method##Request, v1::method##Reply> k##method{"/rdmad.v1." #service "/" #method}

SDK_RPC(SessionService, GetSession);

SDK_RPC(MemoryService, CreatePool);
SDK_RPC(MemoryService, DestroyPool);
SDK_RPC(MemoryService, RegisterRegion);
SDK_RPC(MemoryService, DeregisterRegion);

SDK_RPC(VerbsService, QueryDevices);
SDK_RPC(VerbsService, AllocPd);
SDK_RPC(VerbsService, DeallocPd);
SDK_RPC(VerbsService, CreateCompletionChannel);
SDK_RPC(VerbsService, DestroyCompletionChannel);
SDK_RPC(VerbsService, CreateCq);
SDK_RPC(VerbsService, DestroyCq);
SDK_RPC(VerbsService, CreateQp);
SDK_RPC(VerbsService, ModifyQp);
SDK_RPC(VerbsService, QueryQp);
SDK_RPC(VerbsService, DestroyQp);
SDK_RPC(VerbsService, CreateSrq);
SDK_RPC(VerbsService, ModifySrq);
SDK_RPC(VerbsService, QuerySrq);
SDK_RPC(VerbsService, DestroySrq);
SDK_RPC(VerbsService, CreateAh);
SDK_RPC(VerbsService, DestroyAh);
SDK_RPC(VerbsService, AllocMw);
SDK_RPC(VerbsService, DeallocMw);
SDK_RPC(VerbsService, AttachMulticast);
SDK_RPC(VerbsService, DetachMulticast);

SDK_RPC(CmService, CreateEventChannel);
SDK_RPC(CmService, DestroyEventChannel);
SDK_RPC(CmService, CreateId);
SDK_RPC(CmService, DestroyId);
SDK_RPC(CmService, MigrateId);
SDK_RPC(CmService, SetOption);
SDK_RPC(CmService, BindAddr);
SDK_RPC(CmService, ResolveAddr);
SDK_RPC(CmService, ResolveRoute);
SDK_RPC(CmService, Listen);
SDK_RPC(CmService, SetQp);
SDK_RPC(CmService, Connect);
SDK_RPC(CmService, Accept);
SDK_RPC(CmService, Reject);
SDK_RPC(CmService, Establish);
SDK_RPC(CmService, Disconnect);
SDK_RPC(CmService, Notify);
SDK_RPC(CmService, InitQpAttr);
SDK_RPC(CmService, JoinMulticast);
SDK_RPC(CmService, LeaveMulticast);

SDK_RPC(AdminService, GetStatus);
SDK_RPC(AdminService, ListDevices);
SDK_RPC(AdminService, ListSessions);
SDK_RPC(AdminService, ListConnections);
SDK_RPC(AdminService, ListPools);

#undef SDK_RPC

}  // namespace rpc
}  // namespace rdmad::sdk
