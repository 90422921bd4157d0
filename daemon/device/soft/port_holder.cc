#include "daemon/device/soft/port_holder.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace rdmad::soft {
namespace {

std::string ReadAll(const char* path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool RxeHas(uint16_t port) {
  if (::access("/sys/module/rdma_rxe", F_OK) != 0) return false;
  return HasWildcardSocket(ReadAll("/proc/self/net/udp"), port) ||
         HasWildcardSocket(ReadAll("/proc/self/net/udp6"), port);
}

}  // namespace

// A line is "  12: 00000000:12B7 00000000:0000 07 ...": number, local, remote address and port.
bool HasWildcardSocket(std::string_view table, uint16_t port) noexcept {
  char wanted[8];
  std::snprintf(wanted, sizeof(wanted), ":%04X", port);
  while (!table.empty()) {
    std::string_view line = table.substr(0, table.find('\n'));
    table.remove_prefix(std::min(line.size() + 1, table.size()));
    const size_t number_end = line.find(": ");
    if (number_end == std::string_view::npos) continue;
    line.remove_prefix(number_end + 2);
    line = line.substr(0, line.find(' '));
    const size_t zeros = line.find_first_not_of('0');
    if (zeros != 0 && zeros != std::string_view::npos && line.substr(zeros) == wanted) return true;
  }
  return false;
}

std::string PortHolderAdvice(const std::string& where, uint16_t port) {
  if (RxeHas(port)) {
    return absl::StrCat(
        "the kernel's rxe has ", where,
        "; remove its links (`rdma link`) or unload it (`modprobe -r rdma_rxe`), or leave this "
        "address out of the configuration");
  }
  return absl::StrCat(
      "something else (another rdmad?) has ", where, "; find it with `ss -aunp 'sport = :", port,
      "'` and stop it, or leave this address out of the configuration");
}

}  // namespace rdmad::soft
