#include "daemon/cm/qp_driver.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace rdmad::cm {
namespace {

absl::Status RefusedByQp(const device::QpAttr& attr, device::QpResult result) {
  return absl::InternalError(absl::StrCat("modify_qp: state=", static_cast<int>(attr.state),
                                          " result=", static_cast<int>(result)));
}

}  // namespace

struct QpDriver::Chain {
  QpDriver* driver;  // null once it is over: answers that are still under way find nobody
  std::vector<device::QpAttr> steps;
  size_t answered = 0;
  Done done;
};

QpDriver::~QpDriver() {
  Cancel();
}

void QpDriver::Bind(device::Qp* qp, engine::EngineProxy* engine) noexcept {
  qp_ = qp;
  engine_ = engine;
}

void QpDriver::Unbind() {
  Bind(nullptr, nullptr);
  Cancel();
}

void QpDriver::Cancel() {
  if (chain_ == nullptr) return;
  const std::shared_ptr<Chain> chain = std::exchange(chain_, nullptr);
  chain->driver = nullptr;
  if (chain->done) chain->done(absl::CancelledError("the id's QP is needed otherwise"));
}

void QpDriver::MoveToInit(Done done) {
  device::QpAttr attr;
  attr.mask = device::kQpAttrState | device::kQpAttrAccessFlags | device::kQpAttrPkeyIndex |
              device::kQpAttrPort;
  attr.state = device::QpState::kInit;
  Start({attr}, std::move(done));
}

// Nothing here depends on a peer, nor on the address that the id may not have yet.
void QpDriver::MoveDatagramQpToRts(uint32_t qkey, Done done) {
  device::QpAttr init;
  init.mask =
      device::kQpAttrState | device::kQpAttrPkeyIndex | device::kQpAttrPort | device::kQpAttrQkey;
  init.state = device::QpState::kInit;
  init.qkey = qkey;
  device::QpAttr rtr;
  rtr.mask = device::kQpAttrState;
  rtr.state = device::QpState::kRtr;
  device::QpAttr rts;
  rts.mask = device::kQpAttrState | device::kQpAttrSqPsn;
  rts.state = device::QpState::kRts;
  Start({init, rtr, rts}, std::move(done));
}

void QpDriver::SetQkey(uint32_t qkey, Done done) {
  device::QpAttr attr;
  attr.mask = device::kQpAttrQkey;
  attr.qkey = qkey;
  Start({attr}, std::move(done));
}

void QpDriver::MoveToRts(const device::CmEndpoint& endpoint, const Depths& depths, Done done) {
  std::vector<device::QpAttr> steps;
  for (const device::QpState state :
       {device::QpState::kInit, device::QpState::kRtr, device::QpState::kRts}) {
    absl::StatusOr<device::QpAttr> attr = endpoint.InitQpAttr(state);
    if (!attr.ok()) {
      done(attr.status());
      return;
    }
    if (depths.max_dest_rd_atomic) attr->max_dest_rd_atomic = *depths.max_dest_rd_atomic;
    if (depths.max_rd_atomic) attr->max_rd_atomic = *depths.max_rd_atomic;
    if (min_rnr_timer_ != 0) attr->min_rnr_timer = min_rnr_timer_;
    steps.push_back(*attr);
  }
  Start(std::move(steps), std::move(done));
}

void QpDriver::MoveToErr(Done done) {
  Cancel();
  if (qp_ == nullptr) {
    if (done) done(absl::OkStatus());
    return;
  }
  device::QpAttr attr;
  attr.mask = device::kQpAttrState;
  attr.state = device::QpState::kErr;
  Start({attr}, std::move(done));
}

void QpDriver::Start(std::vector<device::QpAttr> steps, Done done) {
  Cancel();
  const auto chain = std::make_shared<Chain>(Chain{this, std::move(steps), 0, std::move(done)});
  chain_ = chain;
  for (const device::QpAttr& step : chain->steps) {
    // An engine that answers at once may have ended the chain, and the driver.
    if (chain->driver == nullptr) return;
    engine_->ModifyQp(*qp_, step, [chain](device::QpResult result) { OnAnswer(chain, result); });
  }
}

void QpDriver::OnAnswer(const std::shared_ptr<Chain>& chain, device::QpResult result) {
  if (chain->driver == nullptr) return;
  const bool moved = result == device::QpResult::kOk;
  if (moved && ++chain->answered < chain->steps.size()) return;
  std::exchange(chain->driver, nullptr)->chain_ = nullptr;
  // Last: the callee may destroy the driver.
  if (!chain->done) return;
  chain->done(moved ? absl::OkStatus() : RefusedByQp(chain->steps[chain->answered], result));
}

}  // namespace rdmad::cm
