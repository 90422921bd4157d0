// Limits, timers and seed of the soft device's connection manager.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "daemon/device/connection_manager.h"
#include "daemon/device/soft/cm/neighbors.h"
#include "daemon/device/soft/limits.h"
#include "daemon/device/types.h"

namespace rdmad::soft {

struct CmOptions {
  // Where the time comes from, read once per call and once per Poll(). Required.
  std::function<device::TimeNs()> clock;
  // Of communication ids, PSNs, transaction ids and ephemeral ports. The daemon takes it from the
  // kernel.
  uint64_t seed = 0;
  // Tells whether a peer's next hop is there while its address is resolved; null: it is taken to
  // be. Outlives the manager.
  Neighbors* neighbors = nullptr;

  // A message without an answer is sent again after this, then twice this, ... up to the CM
  // response timeout. It starts far below the 4 s that peers are promised: a lost REQ must not cost
  // the user seconds, and a duplicate costs the peer nothing.
  int64_t first_retry_ns = 100'000'000;
  // SIDR's is longer. The kernel forgets a question when it has answered it: repeated while the
  // answer is under way, it is another request to the application there, which takes a place.
  int64_t first_sidr_retry_ns = 1'000'000'000;
  // What REQs announce, as rdma_cm does: code 20 is 4.3 s, and 15 is all that the field holds.
  uint8_t response_timeout = 20;
  int max_cm_retries = 15;
  // A DREQ is given up sooner, after some 6 s: the peer's answer changes nothing any more.
  int max_dreq_retries = 6;
  // A peer that still has an old connection of our QP number refuses a REQ as stale, and ends that
  // connection. So the same REQ, sent again under another id, is taken once that has gone by: after
  // this time, twice this time, ... (3.75 s in all, which is longer than most time-waits).
  int64_t first_stale_retry_ns = 250'000'000;
  int max_stale_retries = 4;
  // How long a pending request whose peer repeats its REQ may take to be accepted: 22 is 17 s per
  // repetition.
  uint8_t mra_service_timeout = 22;

  // How long the numbers of an ended connection are remembered, at least: else as long as its ACK
  // timeout says that a packet and its answer may be under way.
  int64_t timewait_ns = 1'000'000'000;
  // How long a rejected REQ is remembered after it last came, so that its repetitions get the same
  // answer: two of the pauses that our MRA asks for. Of more than so many the oldest are forgotten.
  int64_t rejected_ns = 35'000'000'000;
  size_t max_rejected = 4'096;
  // The same for an answered SIDR_REQ, of as many: two of the longest pauses between its
  // repetitions.
  int64_t sidr_answer_ns = 10'000'000'000;
  // When a pending request is dropped that the application does not answer and the peer does not
  // repeat.
  int64_t request_ttl_ns = 120'000'000'000;

  // The QP's ACK timeout (code: 16 is 268 ms) unless the application sets one. rdma_cm uses 19, 2.1
  // s, which makes a lost last packet stall for seconds.
  uint8_t local_ack_timeout = 16;
  uint8_t target_ack_delay = kLocalAckDelay;
  // As rdma_cm: 0 is 655 ms. Programs that rely on few RNR retries rely on this.
  uint8_t min_rnr_timer = 0;

  // In any state; SIDR apart, as many. Those of ids are as many as the sessions' quotas allow.
  size_t max_connections = 1'048'576;
  // What is over outlives its id, and its session: of more than so many the oldest are forgotten, so
  // that who connects and goes in a loop keeps nobody from connecting.
  size_t max_timewait = 65'536;
  // Of all listeners together; a REQ beyond it is dropped. A session has far fewer by its quota.
  size_t max_pending_requests = 65'536;
  size_t max_queued_local_mads = 16'384;  // to peers in this daemon; more are lost, as on a wire
  int poll_budget = 256;                  // messages, timers and events per Poll()

  uint16_t ephemeral_first = 32'768;
  uint16_t ephemeral_last = 60'999;
};

}  // namespace rdmad::soft
