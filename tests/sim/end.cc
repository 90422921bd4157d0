#include "tests/sim/end.h"

#include "daemon/base/check.h"
#include "daemon/device/soft/limits.h"
#include "daemon/device/soft/requester.h"

namespace rdmad::sim {

using device::QpAttr;
using device::QpResult;
using device::QpState;
using enum device::QpAttrMask;

End::End(std::string name, soft::Transport& transport, const IpAddress& address, const Terms& terms,
         SharedReceives* shared, const Excuses& excuses, Random& random, Verdict& verdict)
    : name_(std::move(name)),
      transport_(transport),
      address_(address),
      terms_(terms),
      shared_(shared),
      excuses_(excuses),
      random_(random),
      verdict_(verdict),
      arena_(terms.max_message_bytes, terms.send_depth + terms.recv_depth + 8, random) {
  if (shared_ != nullptr) shared_->AddUser();
}

End::~End() {
  if (qp_ != nullptr) Destroy(0);
  windows_.Destroy(0);
  for (auto* mr : {&local_mr_, &target_mr_}) {
    if (*mr != nullptr) (*mr)->Deactivate(0);
  }
}

void End::Create(uint32_t qpn, TimeNs now) {
  const auto make_region = [&](std::unique_ptr<soft::SoftMr>& mr, Piece range, uint32_t access) {
    if (mr != nullptr) return;
    auto made = soft::SoftMr::Create(transport_, pd_,
                                     {.host_addr = arena_.at(range.offset),
                                      .length_bytes = range.bytes,
                                      .iova = Address(range.offset),
                                      .access = access});
    RD_CHECK(made.ok(), made.status().ToString().c_str());
    mr = std::move(*made);
    mr->Activate(now);
  };
  make_region(local_mr_, {0, static_cast<uint32_t>(arena_.size())}, device::kAccessLocalWrite);
  make_region(target_mr_, arena_.exposed(), terms_.windows > 0 ? device::kAccessAll : kFullAccess);
  windows_.Create(transport_, pd_, terms_.windows, now);
  if (qp_ == nullptr) {
    soft::SoftQpInit init;
    init.qpn = qpn;
    init.pd = &pd_;
    init.init.send_cq = &send_cq_;
    init.init.recv_cq = &recv_cq_;
    if (shared_ != nullptr) init.init.srq = shared_->srq();
    init.init.signal_all = terms_.signal_all;
    init.init.owner_token = reinterpret_cast<uintptr_t>(this);
    init.cap = {terms_.send_depth, terms_.recv_depth, terms_.max_sge, terms_.max_sge,
                soft::kMaxInlineBytes};
    init.source = [address = address_](uint32_t, soft::SourceAddress* out) {
      out->address = address;
      return true;
    };
    auto qp = soft::SoftQp::Create(transport_, init);
    RD_CHECK(qp.ok(), qp.status().ToString().c_str());
    qp_ = std::move(*qp);
    qp_->Activate(now);
  }
  QpAttr attr;
  attr.mask = kQpAttrState | kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags;
  attr.state = QpState::kInit;
  attr.access_flags = terms_.access;
  if (qp_->Modify(attr, now) != QpResult::kOk) Blame("to init refused");
}

void End::ToRtr(uint32_t rq_psn, TimeNs now) {
  QpAttr attr;
  attr.mask = kQpAttrState | kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn |
              kQpAttrMaxDestRdAtomic | kQpAttrMinRnrTimer;
  attr.state = QpState::kRtr;
  attr.av.dest = peer_->address_;
  attr.path_mtu = terms_.mtu;
  attr.dest_qpn = peer_->qpn();
  attr.rq_psn = rq_psn;
  attr.max_dest_rd_atomic = terms_.dest_rd_atomic;
  attr.min_rnr_timer = terms_.min_rnr_timer;
  if (qp_->Modify(attr, now) != QpResult::kOk) Blame("to rtr refused");
}

void End::ToRts(uint32_t sq_psn, TimeNs now) {
  QpAttr attr;
  attr.mask = kQpAttrState | kQpAttrSqPsn | kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry |
              kQpAttrMaxQpRdAtomic;
  attr.state = QpState::kRts;
  attr.sq_psn = sq_psn;
  attr.timeout = terms_.timeout;
  attr.retry_count = terms_.retry_count;
  attr.rnr_retry = terms_.rnr_retry;
  attr.max_rd_atomic = terms_.rd_atomic;
  // A packet that the peer had no right to send may have ended it in kRtr already.
  if (qp_->Modify(attr, now) != QpResult::kOk && qp_->Query().state != QpState::kErr) {
    Blame("to rts refused");
  }
}

bool End::is_alive() const {
  if (qp_ == nullptr) return false;
  const QpState state = qp_->Query().state;
  return state == QpState::kRtr || state == QpState::kRts || state == QpState::kSqd;
}

void End::Fail(TimeNs now) {
  told_to_fail_ = disturbed_ = true;
  if (qp_ == nullptr || qp_->Query().state == QpState::kReset) return;
  QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = QpState::kErr;
  if (qp_->Modify(attr, now) != QpResult::kOk) Blame("to error refused");
  SettleSilent();
  if (HasOpenSends() || settled_receives_ < receives_.size()) {
    Blame("not all was flushed: ", Describe());
  }
}

// Once each time when the QP goes to error, so that its owner knows that it takes no more.
void End::OnLastWqe() {
  ++last_wqe_events_;
}

void End::OnAccessError() {
  if (++access_errors_ > 1) Blame("a second access error of one life");
}

void End::CheckLastWqe() {
  const bool expected = shared_ != nullptr && qp_->Query().state == QpState::kErr;
  if (last_wqe_events_ != (expected ? 1u : 0u)) {
    Blame(last_wqe_events_, " events of the last receive; ", Describe());
  }
  last_wqe_events_ = 0;
}

void End::ForgetAll() {
  forgotten_ = disturbed_ = true;
  while (settled_sends_ < sends_.size()) SettleFailed(settled_sends_++);
  while (settled_receives_ < receives_.size()) SettleReceive(settled_receives_++, false);
}

void End::Reset(TimeNs now) {
  if (qp_ == nullptr) return;
  CheckLastWqe();
  if (shared_ != nullptr && is_alive()) shared_->MayLoseOne();
  QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = QpState::kReset;
  if (qp_->Modify(attr, now) != QpResult::kOk) Blame("to reset refused");
  ForgetAll();
}

void End::Destroy(TimeNs now) {
  if (qp_ == nullptr) return;
  CheckLastWqe();
  if (shared_ != nullptr && is_alive()) shared_->MayLoseOne();
  qp_->Deactivate(now);
  qp_.reset();
  ForgetAll();
}

void End::StartDrain(TimeNs now) {
  if (qp_ == nullptr || qp_->Query().state != QpState::kRts) return;
  draining_ = true;
  drained_ = false;
  QpAttr attr;
  attr.mask = kQpAttrState | device::kQpAttrEnSqdAsyncNotify;
  attr.state = QpState::kSqd;
  attr.en_sqd_async_notify = true;
  if (qp_->Modify(attr, now) != QpResult::kOk) Blame("to sqd refused");
}

void End::OnDrained() {
  if (!draining_ || drained_) Blame("a drain event that nobody waits for");
  drained_ = true;
}

void End::EndDrain(TimeNs now) {
  if (!draining_) return;
  draining_ = false;
  if (qp_ == nullptr || qp_->Query().state != QpState::kSqd) return;
  QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = QpState::kRts;
  if (qp_->Modify(attr, now) != QpResult::kOk) Blame("from sqd to rts refused");
}

void End::Withdraw(bool target, TimeNs now) {
  std::unique_ptr<soft::SoftMr>& mr = target ? target_mr_ : local_mr_;
  if (mr == nullptr) return;
  withdrawn_ = true;
  mr->Deactivate(now);
  mr.reset();
}

void End::SettleSilent() {
  if (qp_ == nullptr || !qp_->requester().queue().empty()) return;
  while (settled_sends_ < sends_.size()) {
    if ((sends_[settled_sends_].flags & shm::kWorkSignaled) != 0 || terms_.signal_all) {
      Blame("wr ", settled_sends_, " is done without a completion");
    }
    SettleDone(settled_sends_++);
  }
}

uint32_t End::MissingReceives() const {
  const size_t needed = peer_->takers_.size();
  // The others may take them: one more, as long as any is missing.
  if (shared_ != nullptr) return needed > received_ ? 1 : 0;
  return needed > receives_.size() ? static_cast<uint32_t>(needed - receives_.size()) : 0;
}

std::string End::Describe() const {
  std::ostringstream text;
  text << name_ << " state=" << (qp_ == nullptr ? -1 : static_cast<int>(qp_->Query().state))
       << " sends=" << settled_sends_ << '/' << sends_.size() << " receives=" << settled_receives_
       << '/' << receives_.size() << " takers=" << takers_.size();
  return text.str();
}

void End::Close(TimeNs now) {
  windows_.Destroy(now);
  if (settled_sends_ < sends_.size() || settled_receives_ < receives_.size()) {
    Blame("closed with open work: ", Describe());
  }
  if (peer_must_know_ && peer_->access_errors_ != 1) {
    peer_->Blame("no event of a key that was refused; ", Describe());
  }
  Arena& target = peer_->arena_;
  // What failed may have been done, in whole or in part.
  for (const size_t index : open_writes_) {
    const SendRecord& write = sends_[index];
    for (uint32_t i = 0; i < write.bytes; ++i) {
      const uint32_t offset = write.remote_offset + i;
      if (*target.at(offset) == write.content[i]) *target.model(offset) = write.content[i];
    }
  }
  // Of atomics some first ones are done, each once.
  for (const size_t index : open_atomics_) {
    const SendRecord& atomic = sends_[index];
    const uint32_t offset = atomic.remote_offset;
    if (std::memcmp(target.at(offset), target.model(offset), 8) == 0) continue;
    target.set_model_word(offset, AfterAtomic(atomic, target.model_word(offset)));
  }
}

void End::CompareMemory() {
  const size_t at = arena_.FirstDifference();
  if (at == arena_.size()) return;
  Blame("byte ", at, " is 0x", std::hex, static_cast<int>(*arena_.at(static_cast<uint32_t>(at))),
        " and not 0x", static_cast<int>(*arena_.model(static_cast<uint32_t>(at))), std::dec,
        " (target at ", arena_.target_offset(), ", words at ", arena_.words_offset(), "); ",
        Describe());
}

void End::StartEpoch() {
  arena_.Renew(random_);
  sends_.clear();
  receives_.clear();
  takers_.clear();
  open_writes_.clear();
  open_atomics_.clear();
  settled_sends_ = settled_receives_ = received_ = 0;
  last_shared_ = SharedReceives::kNone;
  access_errors_ = 0;
  peer_must_know_ = false;
  send_failed_ = recv_failed_ = forgotten_ = told_to_fail_ = disturbed_ = withdrawn_ = broken_ =
      draining_ = drained_ = false;
}

}  // namespace rdmad::sim
