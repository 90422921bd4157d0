#include <atomic>
#include <utility>

#include "client/sdk/protection_domain.h"
#include "client/sdk/status_macros.h"
#include "rdmad/verbs.h"

namespace rdmad {
namespace sdk {

// Thread: any. Owner: handles.
class WindowState {
 public:
  WindowState(std::shared_ptr<PdState> of_pd, uint64_t its_handle, uint32_t first_rkey) noexcept
      : rkey(first_rkey), pd_(std::move(of_pd)), handle_(its_handle) {}
  ~WindowState() { Dealloc().IgnoreError(); }
  WindowState(const WindowState&) = delete;
  WindowState& operator=(const WindowState&) = delete;

  absl::Status Dealloc() {
    if (gone_.exchange(true)) return absl::OkStatus();
    v1::DeallocMwRequest request;
    request.set_mw(handle_);
    const absl::Status status = pd_->session()->Release(rpc::kDeallocMw, request);
    if (!status.ok()) gone_.store(false);
    return status;
  }

  std::atomic<uint32_t> rkey;  // Relaxed: who binds tells others by other means.

 private:
  const std::shared_ptr<PdState> pd_;
  const uint64_t handle_;
  std::atomic<bool> gone_{false};
};

}  // namespace sdk

absl::StatusOr<MemoryWindow> MemoryWindow::Alloc(const ProtectionDomain& pd) {
  v1::AllocMwRequest request;
  request.set_pd(pd.state()->handle());
  request.set_type(2);
  SDK_ASSIGN_OR_RETURN(const v1::AllocMwReply reply, pd.state()->session()->Call(sdk::rpc::kAllocMw, request));
  return MemoryWindow(std::make_shared<sdk::WindowState>(pd.state(), reply.mw(), reply.rkey()));
}

uint32_t MemoryWindow::rkey() const noexcept { return state_->rkey.load(std::memory_order_relaxed); }
void MemoryWindow::set_rkey(uint32_t rkey) noexcept { state_->rkey.store(rkey, std::memory_order_relaxed); }
absl::Status MemoryWindow::Dealloc() { return state_->Dealloc(); }

}  // namespace rdmad
