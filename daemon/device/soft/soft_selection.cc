#include "daemon/device/soft/soft_selection.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace rdmad::soft {
namespace {

bool Contains(const std::vector<IpAddress>& list, const IpAddress& address) {
  return std::find(list.begin(), list.end(), address) != list.end();
}

class Selector {
 public:
  explicit Selector(const std::vector<NetInterface>& interfaces) : interfaces_(interfaces) {}

  void AddAll() {
    for (const NetInterface& interface : interfaces_) AddInterface(interface, false);
  }

  void AddNamed(const std::string& name) {
    for (const NetInterface& interface : interfaces_) {
      if (interface.name == name) return AddInterface(interface, true);
    }
    const absl::StatusOr<IpAddress> address = IpAddress::Parse(name);
    if (!address.ok()) {
      return AddProblem(name,
                        "skipped: neither an interface of this host nor an address; taken as soon "
                        "as there is such an interface");
    }
    const NetInterface* interface = FindInterface(interfaces_, *address);
    if (interface == nullptr) {
      const bool unscoped = address->is_link_local() && address->scope_id() == 0;
      return AddProblem(name, unscoped
                                  ? "skipped: a link-local address needs its interface "
                                    "(address%interface)"
                                  : "skipped: no interface of this host has the address; taken as "
                                    "soon as one has it");
    }
    for (const NetAddress& one : interface->addresses) {
      if (one.address == *address && !IsUsable(*interface, one)) return;
    }
    Add(*interface, *address).by_address = true;
  }

  SoftSelection Take() { return std::move(selection_); }

 private:
  void AddInterface(const NetInterface& interface, bool by_name) {
    if (!interface.loopback) Entry({interface.index, {}}, interface).by_name |= by_name;
    for (const NetAddress& one : interface.addresses) {
      if (IsUsable(interface, one)) Add(interface, one.address).by_name |= by_name;
    }
  }

  SelectedDevice& Add(const NetInterface& interface, const IpAddress& address) {
    SelectedDevice& entry =
        Entry({interface.index, interface.loopback ? address : IpAddress()}, interface);
    if (!Contains(entry.addresses, address)) entry.addresses.push_back(address);
    return entry;
  }

  SelectedDevice& Entry(const SoftDeviceKey& key, const NetInterface& interface) {
    for (SelectedDevice& entry : selection_.devices) {
      if (entry.key == key) return entry;
    }
    selection_.devices.push_back({key, &interface, {}});
    return selection_.devices.back();
  }

  bool IsUsable(const NetInterface& interface, const NetAddress& address) {
    if (!address.tentative) return true;
    const std::string where =
        absl::StrCat("skipped: the address on ", interface.name, " is not usable");
    AddProblem(address.address.ToString(),
               address.duplicate
                   ? absl::StrCat(where, ": another host has it (duplicate address detection)")
                   : absl::StrCat(where, " yet (duplicate address detection); taken when it is"));
    return false;
  }

  void AddProblem(const std::string& what, const std::string& why) {
    const SoftDeviceProblem problem{what, why};
    auto& all = selection_.problems;
    if (std::find(all.begin(), all.end(), problem) == all.end()) all.push_back(problem);
  }

  const std::vector<NetInterface>& interfaces_;
  SoftSelection selection_;
};

}  // namespace

SoftSelection SelectDevices(const std::vector<std::string>& only,
                            const std::vector<NetInterface>& interfaces) {
  Selector selector(interfaces);
  if (only.empty()) selector.AddAll();
  for (const std::string& name : only) selector.AddNamed(name);
  return selector.Take();
}

}  // namespace rdmad::soft
