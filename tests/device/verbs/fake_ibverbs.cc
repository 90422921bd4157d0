#include "tests/device/verbs/fake_ibverbs.h"

#include <endian.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/base/check.h"

namespace rdmad::testing {
namespace {

FakeIbverbs* fake = nullptr;

int PostSend(ibv_qp*, ibv_send_wr* wr, ibv_send_wr** bad) {
  ++fake->posts;
  if (fake->sends.empty()) fake->recv_posts_before_sends = fake->recv_posts;
  uint32_t left = std::exchange(fake->sends_taken, std::exchange(fake->then_taken, UINT32_MAX));
  for (; wr != nullptr; wr = wr->next, --left) {
    if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD && wr->num_sge == 0) {
      *bad = wr;
      return EINVAL;
    }
    if (left == 0 || wr->num_sge > static_cast<int>(fake->max_send_sge)) {
      *bad = wr;
      return ENOMEM;
    }
    uint32_t bytes = 0;
    for (int i = 0; i < wr->num_sge; ++i) bytes += wr->sg_list[i].length;
    PostedSend sent{wr->wr_id, wr->opcode, wr->send_flags, bytes};
    sent.invalidates = wr->invalidate_rkey;
    if (wr->opcode == IBV_WR_BIND_MW) {
      sent.bind = wr->bind_mw;
      sent.bind_from = wr->bind_mw.mw->rkey;
    }
    if (fake->qp.qp_type == IBV_QPT_UD)
      sent.ud = {wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey};
    fake->sends.push_back(sent);
  }
  return 0;
}

int TakeRecvs(ibv_recv_wr* wr, ibv_recv_wr** bad, std::vector<uint64_t>* taken) {
  ++fake->recv_posts;
  for (; wr != nullptr; wr = wr->next) {
    if (fake->recvs_taken == 0) {
      *bad = wr;
      return ENOMEM;
    }
    --fake->recvs_taken;
    taken->push_back(wr->wr_id);
  }
  return 0;
}

int PostRecv(ibv_qp*, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return TakeRecvs(wr, bad, &fake->recvs);
}

int PostSrqRecv(ibv_srq*, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return TakeRecvs(wr, bad, &fake->srq_recvs);
}

ibv_mw* AllocMw(ibv_pd* pd, ibv_mw_type type) {
  ++fake->open_objects;
  ++fake->windows;
  return new ibv_mw{pd->context, pd, fake->next_window_key += 0x100, 0, type};
}

int DeallocMw(ibv_mw* mw) {
  --fake->windows;
  delete mw;
  --fake->open_objects;
  return 0;
}

int PollCqOp(ibv_cq*, int count, ibv_wc* wcs) {
  return fake->PollCq(count, wcs);
}

int ArmCq(ibv_cq*, int) {
  ++fake->arms;
  return 0;
}

int Destroy() {
  --fake->open_objects;
  return 0;
}

}  // namespace

FakeIbverbs::FakeIbverbs() {
  RD_CHECK(fake == nullptr, "one at a time");
  fake = this;
  std::strcpy(device_.name, "fake0");
  RD_CHECK(::pipe2(channel_pipe, O_CLOEXEC) == 0 && ::pipe2(async_pipe, O_CLOEXEC) == 0);
  context.device = &device_;
  context.async_fd = async_pipe[0];
  context.ops.post_send = PostSend;
  context.ops.post_recv = PostRecv;
  context.ops.post_srq_recv = PostSrqRecv;
  context.ops.alloc_mw = AllocMw;
  context.ops.dealloc_mw = DeallocMw;
  context.ops.poll_cq = PollCqOp;
  context.ops.req_notify_cq = ArmCq;
}

FakeIbverbs::~FakeIbverbs() {
  for (const int fd : {channel_pipe[0], channel_pipe[1], async_pipe[0], async_pipe[1]}) ::close(fd);
  fake = nullptr;
}

FakeIbverbs& FakeIbverbs::Get() {
  return *fake;
}

void FakeIbverbs::Complete(uint64_t wr_id, ibv_wc_status status, ibv_wc_opcode opcode,
                           uint32_t byte_len) {
  ibv_wc wc{};
  wc.wr_id = wr_id;
  wc.status = status;
  wc.opcode = opcode;
  wc.byte_len = byte_len;
  wc.qp_num = qp.qp_num;
  completions.push_back(wc);
}

void FakeIbverbs::RaiseCompletionEvent() {
  RD_CHECK(::write(channel_pipe[1], "c", 1) == 1);
}

void FakeIbverbs::RaiseAsync(ibv_event_type type) {
  const auto byte = static_cast<char>(type);
  RD_CHECK(::write(async_pipe[1], &byte, 1) == 1);
}

int FakeIbverbs::PollCq(int count, ibv_wc* wcs) {
  int taken = 0;
  for (; taken < count && !completions.empty(); ++taken) {
    wcs[taken] = completions.front();
    completions.pop_front();
  }
  return taken;
}

}  // namespace rdmad::testing

// ---- the library's functions that the device calls ----

using rdmad::testing::Destroy;
using rdmad::testing::FakeIbverbs;

extern "C" {

const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}
ibv_context* ibv_open_device(ibv_device*) {
  ++FakeIbverbs::Get().open_objects;
  return &FakeIbverbs::Get().context;
}
int ibv_close_device(ibv_context*) {
  return Destroy();
}
ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  ++FakeIbverbs::Get().open_objects;
  return new ibv_comp_channel{context, FakeIbverbs::Get().channel_pipe[0], 0};
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  delete channel;
  return Destroy();
}
ibv_pd* ibv_alloc_pd(ibv_context* context) {
  ++FakeIbverbs::Get().open_objects;
  return new ibv_pd{context, 1};
}
int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;
  return Destroy();
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t, unsigned int) {
  if (FakeIbverbs::Get().during_slow_call) FakeIbverbs::Get().during_slow_call();
  ++FakeIbverbs::Get().open_objects;
  const uint32_t lkey = FakeIbverbs::Get().next_lkey++;
  return new ibv_mr{pd->context, pd, addr, length, 1, lkey, lkey + 1};
}
int ibv_dereg_mr(ibv_mr* mr) {
  delete mr;
  return Destroy();
}
ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int) {
  FakeIbverbs& fake = FakeIbverbs::Get();
  ++fake.open_objects;
  fake.cq.context = context;
  fake.cq.channel = channel;
  fake.cq.cq_context = cq_context;
  fake.cq.cqe = cqe;
  return &fake.cq;
}
int ibv_destroy_cq(ibv_cq*) {
  return Destroy();
}
ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  FakeIbverbs& fake = FakeIbverbs::Get();
  ++fake.open_objects;
  fake.qp.context = pd->context;
  fake.qp.qp_num = 0x77;
  fake.qp.qp_type = init->qp_type;
  fake.qp.srq = init->srq;
  fake.max_send_sge = init->cap.max_send_sge;
  return &fake.qp;
}
ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  FakeIbverbs& fake = FakeIbverbs::Get();
  ++fake.open_objects;
  fake.srq.context = pd->context;
  init->attr.max_wr = std::bit_ceil(init->attr.max_wr);
  return &fake.srq;
}
int ibv_destroy_srq(ibv_srq*) {
  return Destroy();
}
int ibv_modify_srq(ibv_srq*, ibv_srq_attr* attr, int mask) {
  FakeIbverbs& fake = FakeIbverbs::Get();
  if (fake.modify_error != 0) return fake.modify_error;
  if (mask == IBV_SRQ_LIMIT) fake.srq_limit = attr->srq_limit;
  return 0;
}
ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  FakeIbverbs& fake = FakeIbverbs::Get();
  if (fake.during_slow_call) fake.during_slow_call();
  if (fake.create_ah_error != 0) {
    errno = fake.create_ah_error;
    return nullptr;
  }
  ++fake.open_objects;
  fake.ah_attr = *attr;
  return new ibv_ah{pd->context, pd, 1};
}
int ibv_destroy_ah(ibv_ah* ah) {
  delete ah;
  return Destroy();
}
int ibv_attach_mcast(ibv_qp*, const ibv_gid* gid, uint16_t) {
  FakeIbverbs::Get().attached = *gid;
  ++FakeIbverbs::Get().open_objects;
  return 0;
}
int ibv_detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) {
  return Destroy();
}
ssize_t _ibv_query_gid_table(ibv_context*, ibv_gid_entry* entries, size_t, uint32_t, size_t) {
  const FakeIbverbs& fake = FakeIbverbs::Get();
  entries[0] = {};
  entries[0].port_num = fake.gid_port;
  entries[0].ndev_ifindex = fake.ifindex;
  if (fake.ports == 0) return 1;
  for (uint8_t port = 1; port <= fake.ports; ++port) {
    ibv_gid_entry& entry = entries[port - 1];
    entry = {};
    entry.port_num = port;
    entry.gid_type = IBV_GID_TYPE_ROCE_V2;
    const uint8_t gid[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, port, 1};
    std::memcpy(entry.gid.raw, gid, sizeof(gid));
  }
  return fake.ports;
}
ibv_device** ibv_get_device_list(int* count) {
  FakeIbverbs& fake = FakeIbverbs::Get();
  if (count != nullptr) *count = fake.present ? 1 : 0;
  return new ibv_device*[2]{fake.present ? fake.device() : nullptr, nullptr};
}
void ibv_free_device_list(ibv_device** list) {
  delete[] list;
}
int ibv_query_device(ibv_context*, ibv_device_attr* attr) {
  *attr = {};
  attr->max_qp = attr->max_cq = attr->max_pd = attr->max_mr = attr->max_ah = 16;
  attr->max_cqe = attr->max_qp_wr = 64;
  attr->max_sge = 4;
  attr->device_cap_flags = UINT32_MAX;
  return 0;
}
int ibv_query_pkey(ibv_context*, uint8_t, int index, __be16* pkey) {
  *pkey = htobe16(static_cast<uint16_t>(0xffff - index));
  return 0;
}
// The name is a macro, too.
int(ibv_query_port)(ibv_context*, uint8_t port, _compat_ibv_port_attr* compat) {
  auto* const attr = reinterpret_cast<ibv_port_attr*>(compat);
  FakeIbverbs& fake = FakeIbverbs::Get();
  ++fake.port_queries;
  attr->link_layer = fake.port.link_layer;
  attr->lid = fake.port.lid;
  attr->lmc = fake.port.lmc;
  attr->state = port == 1 ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  attr->max_mtu = IBV_MTU_4096;
  attr->active_mtu = fake.port.active_mtu;
  attr->max_msg_sz = 1 << 20;
  attr->pkey_tbl_len = 2;
  return 0;
}
int ibv_destroy_qp(ibv_qp*) {
  return Destroy();
}
int ibv_modify_qp(ibv_qp*, ibv_qp_attr* attr, int mask) {
  FakeIbverbs& fake = FakeIbverbs::Get();
  if (fake.modify_error != 0) return fake.modify_error;
  fake.last_modify = *attr;
  fake.last_mask = mask;
  if ((mask & IBV_QP_STATE) != 0) fake.moves.push_back(attr->qp_state);
  return 0;
}
int ibv_query_qp(ibv_qp*, ibv_qp_attr* attr, int, ibv_qp_init_attr*) {
  *attr = {};
  FakeIbverbs& fake = FakeIbverbs::Get();
  ++fake.qp_queries;
  attr->qp_state = fake.moves.empty() ? IBV_QPS_RESET : fake.moves.back();
  if (fake.entered) attr->qp_state = *fake.entered;
  return 0;
}
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  char byte;
  if (::read(channel->fd, &byte, 1) != 1) return -1;
  *cq = &FakeIbverbs::Get().cq;
  *cq_context = (*cq)->cq_context;
  return 0;
}
void ibv_ack_cq_events(ibv_cq*, unsigned int) {}
int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  char byte;
  if (::read(context->async_fd, &byte, 1) != 1) return -1;
  *event = {};
  event->event_type = static_cast<ibv_event_type>(byte);
  if (event->event_type == IBV_EVENT_PORT_ERR || event->event_type == IBV_EVENT_PORT_ACTIVE ||
      event->event_type == IBV_EVENT_GID_CHANGE || event->event_type == IBV_EVENT_LID_CHANGE) {
    event->element.port_num = FakeIbverbs::Get().event_port;
    return 0;
  }
  if (event->event_type == IBV_EVENT_SRQ_ERR || event->event_type == IBV_EVENT_SRQ_LIMIT_REACHED) {
    event->element.srq = &FakeIbverbs::Get().srq;
  } else if (event->event_type == IBV_EVENT_CQ_ERR) {
    event->element.cq = &FakeIbverbs::Get().cq;
  } else {
    event->element.qp = &FakeIbverbs::Get().qp;
  }
  return 0;
}
void ibv_ack_async_event(ibv_async_event*) {}

}  // extern "C"
