// verbs.proto: memory windows.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/session/session.h"
#include "daemon/session/session_tables.h"

namespace rdmad::session {
namespace {

constexpr uint32_t kType1 = 1;  // ibv_mw_type
constexpr uint32_t kType2 = 2;

absl::Status CheckType(uint32_t type) {
  if (type == kType2) return absl::OkStatus();
  const std::string what = absl::StrCat("alloc_mw: type=", type, ": allowed is 2");
  return type == kType1 ? absl::UnimplementedError(what) : absl::InvalidArgumentError(what);
}

}  // namespace

absl::StatusOr<Handle> Session::PrepareMw(const v1::AllocMwRequest& request) {
  RD_RETURN_IF_ERROR(CheckOpen());
  RD_ASSIGN_OR_RETURN(PdObject * pd, Live(pds_, request.pd()));
  RD_RETURN_IF_ERROR(CheckType(request.type()));
  RD_ASSIGN_OR_RETURN(device::Context * context, ContextOn(pd->device_index));
  auto object = std::make_unique<MwObject>();
  RD_ASSIGN_OR_RETURN(object->charge, quota_.Take("alloc_mw", Resource::kMws));
  object->device_index = pd->device_index;
  RD_ASSIGN_OR_RETURN(object->mw, context->AllocMw(*pd->pd));
  AddParts(object.get());
  MwObject* mw = object.get();
  RD_ASSIGN_OR_RETURN(const Handle handle, mws_.Insert(std::move(object)));
  mw->pd_use = UseRef(pd->users, handle);
  return handle;
}

void Session::AllocMw(const v1::AllocMwRequest& request, v1::AllocMwReply* reply, Done done) {
  absl::StatusOr<Handle> handle = PrepareMw(request);
  if (!handle.ok()) return done(handle.status());
  const MwObject* made = mws_.Find(*handle);
  Activate({made->mw.get()}, made->parts, [this, handle = *handle, reply, done = std::move(done)] {
    const MwObject* mw = MakeLive(mws_, handle, done);
    if (mw == nullptr) return;
    reply->set_mw(handle);
    reply->set_rkey(mw->mw->rkey());
    done(absl::OkStatus());
  });
}

void Session::DeallocMw(const v1::DeallocMwRequest& request, v1::DeallocMwReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<MwObject*> mw = Live(mws_, request.mw());
  if (!mw.ok()) return done(mw.status());
  RetireMw(request.mw(), [done = std::move(done)] { done(absl::OkStatus()); });
}

void Session::RetireMw(Handle handle, std::function<void()> on_gone) {
  MwObject* mw = mws_.Find(handle);
  if (!BeginRetiring(*mw, std::move(on_gone))) return;
  Deactivate({mw->mw.get()}, mw->parts, [this, handle] { Bury(mws_, handle); });
}

}  // namespace rdmad::session
