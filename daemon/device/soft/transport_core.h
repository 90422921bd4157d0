// What the QPs of one transport share. Only they and the transport itself look in here.
//
// Thread: engine, but for construction. Owner: the transport.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/active_list.h"
#include "daemon/device/soft/limits.h"
#include "daemon/device/soft/mr_table.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/qp_table.h"
#include "daemon/device/soft/timer_queue.h"
#include "daemon/device/soft/transport_counters.h"
#include "daemon/device/soft/tx_batch.h"

namespace rdmad::soft {

class FirstDataSink;
class StrayPackets;

// QPs of addresses beyond these talk to each other by way of the kernel's loopback.
inline constexpr size_t kMaxLocalAddresses = 1024;

struct TransportCore {
  TransportCore(PacketTx* packet_tx, device::AsyncSink* async_sink,
                const TransportConfig& transport_config)
      : tx(packet_tx), async(async_sink), config(transport_config) {
    local_addresses.reserve(kMaxLocalAddresses);
  }

  bool IsLocal(const IpAddress& address) const noexcept {
    return std::find(local_addresses.begin(), local_addresses.end(), address) !=
           local_addresses.end();
  }

  PacketTx* const tx;
  StrayPackets* strays = nullptr;  // of other engines; null: there are none
  FirstDataSink* first_data = nullptr;  // null: nobody wants to know
  device::AsyncSink* const async;
  const TransportConfig config;
  MrTable mrs;
  QpTable qps;
  TimerQueue timers;
  ActiveList active;
  TxBatch batch;
  std::vector<IpAddress> local_addresses;  // at most kMaxLocalAddresses
  uint32_t local_generation = 1;           // of local_addresses: QPs remember what they looked up
  TransportCounters counters;
};

}  // namespace rdmad::soft
