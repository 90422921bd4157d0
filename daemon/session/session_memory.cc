// memory.proto: pools and regions.
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/status_macros.h"
#include "daemon/session/session.h"
#include "daemon/session/session_tables.h"

namespace rdmad::session {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = 2 << 20;
constexpr uint64_t kMaxPoolBytes = uint64_t{1} << 50;  // rounding up cannot overflow
// Zeroing or freeing this much takes about a millisecond: more than that must not hold up the
// control thread.
constexpr uint64_t kQuickBytes = 2 << 20;

// Flags that only promise something to a real HCA; the verbs library lets providers ignore the
// optional ones.
constexpr uint32_t kAccessHugeTlb = 1u << 7;           // IBV_ACCESS_HUGETLB
constexpr uint32_t kAccessOptionalRange = 0x3ff00000;  // IBV_ACCESS_OPTIONAL_RANGE
constexpr uint32_t kIgnoredAccess = kAccessHugeTlb | kAccessOptionalRange;

absl::StatusOr<memory::HugePages> HugePagesOf(const v1::CreatePoolRequest& request) {
  switch (request.huge_pages()) {
    case v1::HUGE_PAGES_NO:
      return memory::HugePages::kNo;
    case v1::HUGE_PAGES_PREFER:
      return memory::HugePages::kPrefer;
    case v1::HUGE_PAGES_REQUIRE:
      return memory::HugePages::kRequire;
    default:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "create_pool: huge_pages=", static_cast<int>(request.huge_pages()), " is unknown"));
}

}  // namespace

void Session::RunByWeight(uint64_t bytes, std::function<void()> work, std::function<void()> then) {
  if (bytes <= kQuickBytes) {
    work();
    then();
    return;
  }
  RunSlowly(std::move(work), false, std::move(then));
}

absl::Status Session::ChargePool(PoolObject* object, uint64_t bytes) {
  object->bytes_charge = Charge();
  object->budget = HostBudget::Hold();
  RD_ASSIGN_OR_RETURN(object->bytes_charge,
                      quota_.Take("create_pool", Resource::kPoolBytes, bytes));
  RD_ASSIGN_OR_RETURN(object->budget, environment_.pool_budget->Take("create_pool", bytes));
  return absl::OkStatus();
}

absl::StatusOr<Handle> Session::PreparePool(const v1::CreatePoolRequest& request) {
  RD_RETURN_IF_ERROR(CheckOpen());
  if (request.size_bytes() == 0 || request.size_bytes() > kMaxPoolBytes) {
    return absl::InvalidArgumentError(absl::StrCat("create_pool: size_bytes=", request.size_bytes(),
                                                   ": allowed are 1 to ", kMaxPoolBytes));
  }
  RD_ASSIGN_OR_RETURN(const memory::HugePages huge_pages, HugePagesOf(request));
  auto object = std::make_unique<PoolObject>();
  RD_ASSIGN_OR_RETURN(object->charge, quota_.Take("create_pool", Resource::kPools));
  const uint64_t page = huge_pages == memory::HugePages::kNo ? kPageBytes : kHugePageBytes;
  RD_RETURN_IF_ERROR(ChargePool(object.get(), (request.size_bytes() + page - 1) / page * page));
  return pools_.Insert(std::move(object));
}

void Session::CreatePool(const v1::CreatePoolRequest& request, v1::CreatePoolReply* reply,
                         Done done) {
  absl::StatusOr<Handle> handle = PreparePool(request);
  if (!handle.ok()) return done(handle.status());
  memory::PoolOptions options;
  options.size_bytes = request.size_bytes();
  options.huge_pages = HugePagesOf(request).value();
  options.name = request.name();
  auto made = std::make_shared<std::optional<absl::StatusOr<memory::Pool>>>();
  RunByWeight(
      request.size_bytes(), [made, options] { made->emplace(memory::Pool::Create(options)); },
      [this, made, handle = *handle, reply, done = std::move(done)] {
        absl::Status status = FinishPool(handle, std::move(**made), reply);
        made->reset();
        if (status.ok() || closing()) return done(status);
        // Nobody knows the pool; if there is one, giving it back may take as long as making it.
        BeginRetiring(*pools_.Find(handle), nullptr);
        FreePool(handle, [done, status](const absl::Status&) { done(status); });
      });
}

absl::Status Session::FinishPool(Handle handle, absl::StatusOr<memory::Pool> made,
                                 v1::CreatePoolReply* reply) {
  RD_RETURN_IF_ERROR(made.status());
  PoolObject* object = pools_.Find(handle);
  object->pool.emplace(std::move(*made));
  object->phase = Phase::kLive;
  // What it became may differ from what was asked: other pages than hoped for.
  const memory::Pool& pool = *object->pool;
  RD_RETURN_IF_ERROR(ChargePool(object, pool.size_bytes()));
  RD_RETURN_IF_ERROR(CheckOpen());
  const uint64_t tag = NextDescriptorTag();
  RD_RETURN_IF_ERROR(sender_->SendDescriptor(tag, v1::DESCRIPTOR_KIND_POOL, pool.fd()));
  reply->set_pool(handle);
  reply->set_size_bytes(pool.size_bytes());
  reply->set_page_bytes(pool.page_bytes());
  reply->set_descriptor_tag(tag);
  return absl::OkStatus();
}

void Session::DestroyPool(const v1::DestroyPoolRequest& request, v1::DestroyPoolReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  const Handle handle = request.pool();
  absl::StatusOr<PoolObject*> pool = Live(pools_, handle);
  if (!pool.ok()) return done(pool.status());
  if (!(*pool)->users.empty() && !request.force()) {
    return done(absl::FailedPreconditionError(
        absl::StrCat("destroy_pool: ", HandleText(HandleKind::kPool, handle), " is used by ",
                     (*pool)->users.Text())));
  }
  BeginRetiring(**pool, nullptr);
  // Each region says when it is gone; the last one frees the pool.
  const std::multiset<Handle> regions = (*pool)->users.handles();
  if (regions.empty()) return FreePool(handle, std::move(done));
  auto left = std::make_shared<size_t>(regions.size());
  for (Handle region : regions) {
    RetireRegion(region, [this, left, handle, done] {
      if (--*left == 0) FreePool(handle, done);
    });
  }
}

void Session::FreePool(Handle handle, Done done) {
  PoolObject* object = pools_.Find(handle);
  // Its charges stay until the memory is back.
  auto pool = std::make_shared<std::optional<memory::Pool>>(std::move(object->pool));
  object->pool.reset();
  const uint64_t bytes = pool->has_value() ? (*pool)->size_bytes() : 0;
  RunByWeight(
      bytes, [pool] { pool->reset(); },
      [this, handle, done = std::move(done)] {
        Bury(pools_, handle);
        if (done) done(absl::OkStatus());
      });
}

absl::StatusOr<Handle> Session::PrepareRegion(const v1::RegisterRegionRequest& request) {
  RD_RETURN_IF_ERROR(CheckOpen());
  RD_ASSIGN_OR_RETURN(PdObject * pd, Live(pds_, request.pd()));
  RD_ASSIGN_OR_RETURN(PoolObject * pool, Live(pools_, request.pool()));
  const uint64_t pool_bytes = pool->pool->size_bytes();
  const uint64_t offset = request.offset_bytes();
  const uint64_t length = request.length_bytes();
  if (length == 0 || offset > pool_bytes || length > pool_bytes - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("register_region: offset_bytes=", offset, " length_bytes=", length,
                     " is not within the pool, pool_bytes=", pool_bytes));
  }
  if (request.iova() + length < request.iova()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "register_region: iova=%#x length_bytes=%d wraps around", request.iova(), length));
  }
  RD_ASSIGN_OR_RETURN(device::Context * context, ContextOn(pd->device_index));
  auto object = std::make_unique<RegionObject>();
  RD_ASSIGN_OR_RETURN(object->charge, quota_.Take("register_region", Resource::kRegions));
  RD_ASSIGN_OR_RETURN(object->bytes_charge,
                      quota_.Take("register_region", Resource::kRegionBytes, length));
  device::MrInit init;
  init.host_addr = pool->pool->data() + offset;
  init.length_bytes = length;
  init.iova = request.iova();
  init.access = request.access() & ~kIgnoredAccess;
  object->device_index = pd->device_index;
  RD_ASSIGN_OR_RETURN(object->mr, context->RegisterMr(*pd->pd, init));
  object->phase = Phase::kPreparing;
  RegionObject* region = object.get();
  RD_ASSIGN_OR_RETURN(const Handle handle, regions_.Insert(std::move(object)));
  region->pd_use = UseRef(pd->users, handle);
  region->pool_use = UseRef(pool->users, handle);
  return handle;
}

void Session::RegisterRegion(const v1::RegisterRegionRequest& request,
                             v1::RegisterRegionReply* reply, Done done) {
  absl::StatusOr<Handle> handle = PrepareRegion(request);
  if (!handle.ok()) return done(handle.status());
  RegionObject& made = *regions_.Find(*handle);
  Prepare(*made.mr,
          [this, &made, handle = *handle, reply, done = std::move(done)](absl::Status prepared) {
            if (!OnPrepared(made, prepared, done)) return ReleaseRegion(handle);
            AddParts(&made);
            Activate({made.mr.get()}, made.parts, [this, handle, reply, done] {
              const RegionObject* region = MakeLive(regions_, handle, done);
              if (region == nullptr) return;
              reply->set_region(handle);
              reply->set_lkey(region->mr->lkey());
              reply->set_rkey(region->mr->rkey());
              done(absl::OkStatus());
            });
          });
}

void Session::DeregisterRegion(const v1::DeregisterRegionRequest& request,
                               v1::DeregisterRegionReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<RegionObject*> region = Live(regions_, request.region());
  if (!region.ok()) return done(region.status());
  RetireRegion(request.region(), [done = std::move(done)] { done(absl::OkStatus()); });
}

void Session::RetireRegion(Handle handle, std::function<void()> on_gone) {
  RegionObject* region = regions_.Find(handle);
  const bool preparing = region->phase == Phase::kPreparing;
  if (!BeginRetiring(*region, std::move(on_gone)) || preparing) return;
  Deactivate({region->mr.get()}, region->parts, [this, handle] { ReleaseRegion(handle); });
}

void Session::ReleaseRegion(Handle handle) {
  device::Mr& mr = *regions_.Find(handle)->mr;
  if (!mr.slow()) return Bury(regions_, handle);
  RunSlowly([&mr] { mr.Release(); }, false, [this, handle] { Bury(regions_, handle); });
}

}  // namespace rdmad::session
