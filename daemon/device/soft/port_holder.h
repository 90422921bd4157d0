// Who may have the RoCEv2 port when we cannot have it, and what to do about it, for a person.
//
// The kernel's rxe takes the port on all addresses as soon as it has a link, and no process is
// behind it, so `ss -p` does not help whoever looks for it. What can be seen is a socket on the
// wildcard address and the module.
//
// Thread: any. Source: proc_net(5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rdmad::soft {

// Whether /proc/net/udp or udp6 (`table`) has a socket on the wildcard address and `port`.
[[nodiscard]] bool HasWildcardSocket(std::string_view table, uint16_t port) noexcept;

// "the kernel's rxe has ...; ..." or "something else has ...; ...". `where` names port and address.
std::string PortHolderAdvice(const std::string& where, uint16_t port);

}  // namespace rdmad::soft
