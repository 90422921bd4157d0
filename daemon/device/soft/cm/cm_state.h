// The states of one connection, from the first REQ to the end of its time-wait.
//
//        active side                                  passive side
//
//         Connect()                                   REQ received
//             |                                            |
//             v                                            v
//         kReqSent                                     kReqRcvd
//             | REP                                        | Accept(): REP sent
//             v                                            v
//         kRepRcvd                                     kRepSent
//             |                                            | RTU, or first data
//             |   Establish(): RTU sent                    v
//             +------------------------------------> kEstablished
//                                                     |          |
//                              Disconnect(): DREQ sent|          | DREQ received, DREP sent
//                                                     v          |
//                                                 kDreqSent      |
//                                  DREP, DREQ, timeout|          |
//                                                     v          v
//                                                     kTimewait
//                                                         | timer
//                                                         v
//                                                      kClosed
//
// Out of the way down: REJ and time-outs lead to kClosed; a request that was rejected or withdrawn
// waits in kRejected, to answer what still comes of its REQ; a device that goes takes its
// connections along, from any state; a DREQ also ends kRepSent (the RTU was lost); an owner that
// goes leaves its connection to end by itself. Not drawn: in kReqSent and kRepSent a MRA only moves
// the timer. These are the states of IBTA vol. 1, Communication Management, less those that only
// say whether a MRA was sent, and DREQ received, which is answered at once.
#pragma once

#include <cstdint>

namespace rdmad::soft {

enum class CmState : uint8_t {
  kReqSent,
  kRepRcvd,
  kReqRcvd,
  kRepSent,
  kEstablished,
  kDreqSent,
  kTimewait,
  kRejected,
  kClosed,
};
inline constexpr int kCmStateCount = 9;

// "req_sent", ...
[[nodiscard]] const char* CmStateName(CmState state) noexcept;

[[nodiscard]] bool IsLegalMove(CmState from, CmState to) noexcept;

}  // namespace rdmad::soft
