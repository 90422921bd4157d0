#include "daemon/device/soft/soft_selection.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace rdmad::soft {
namespace {

NetAddress At(const char* text, uint32_t scope = 0) {
  NetAddress address;
  address.address = IpAddress::Parse(text)->WithScope(scope);
  return address;
}

NetInterface Interface(uint32_t index, const char* name, std::vector<NetAddress> addresses) {
  NetInterface interface;
  interface.index = index;
  interface.name = name;
  interface.up = interface.running = true;
  interface.mtu_bytes = 1500;
  interface.addresses = std::move(addresses);
  return interface;
}

// lo with 127.0.0.1 and ::1; eth0 with one address of each family; eth1 without any.
std::vector<NetInterface> Host() {
  std::vector<NetInterface> host = {
      Interface(1, "lo", {At("127.0.0.1"), At("::1")}),
      Interface(2, "eth0", {At("192.0.2.7"), At("fe80::7", 2)}),
      Interface(3, "eth1", {}),
  };
  host[0].loopback = true;
  return host;
}

// "2: 192.0.2.7 fe80::7%2; 3:" and so on.
std::string Text(const SoftSelection& selection) {
  std::string text;
  for (const SelectedDevice& device : selection.devices) {
    if (!text.empty()) text += "; ";
    text += std::to_string(device.key.interface_index) + ":";
    for (const IpAddress& address : device.addresses) text += " " + address.ToString();
  }
  return text;
}

std::string Problems(const SoftSelection& selection) {
  std::string text;
  for (const SoftDeviceProblem& problem : selection.problems)
    text += problem.what + ": " + problem.why + "\n";
  return text;
}

struct Case {
  const char* what;
  std::vector<std::string> only;
  const char* selected;
};

TEST(SoftSelection, TakesWhatTheConfigurationSays) {
  const Case kCases[] = {
      {"automatic", {}, "1: 127.0.0.1; 1: ::1; 2: 192.0.2.7 fe80::7%2; 3:"},
      {"an interface", {"eth0"}, "2: 192.0.2.7 fe80::7%2"},
      {"an address", {"192.0.2.7"}, "2: 192.0.2.7"},
      {"an interface and an address of it", {"eth0", "192.0.2.7"}, "2: 192.0.2.7 fe80::7%2"},
      {"an address and its interface", {"192.0.2.7", "eth0"}, "2: 192.0.2.7 fe80::7%2"},
      {"a link-local address", {"fe80::7%2"}, "2: fe80::7%2"},
      {"an interface without an address", {"eth1"}, "3:"},
      {"any loopback address", {"127.0.0.9", "127.0.0.8"}, "1: 127.0.0.9; 1: 127.0.0.8"},
      {"the loopback interface", {"lo"}, "1: 127.0.0.1; 1: ::1"},
      {"something twice", {"127.0.0.9", "127.0.0.9"}, "1: 127.0.0.9"},
      {"what is not there", {"192.0.2.8", "eth7", "fe80::7"}, ""},
  };
  const std::vector<NetInterface> host = Host();
  for (const Case& one : kCases) {
    EXPECT_EQ(Text(SelectDevices(one.only, host)), one.selected) << one.what;
  }
}

TEST(SoftSelection, AnInterfaceThatIsDownKeepsItsAddresses) {
  std::vector<NetInterface> host = Host();
  host[1].up = host[1].running = false;
  EXPECT_EQ(Text(SelectDevices({"eth0"}, host)), "2: 192.0.2.7 fe80::7%2");
}

TEST(SoftSelection, AnAddressUnderDuplicateAddressDetectionIsNotUsable) {
  std::vector<NetInterface> host = Host();
  host[1].addresses[1].tentative = true;
  for (const std::vector<std::string>& only :
       std::vector<std::vector<std::string>>{{}, {"eth0"}, {"192.0.2.7", "fe80::7%2"}}) {
    const SoftSelection selection = SelectDevices(only, host);
    EXPECT_EQ(Text(selection).find("fe80"), std::string::npos);
    EXPECT_NE(Text(selection).find("192.0.2.7"), std::string::npos);
    EXPECT_NE(Problems(selection).find("not usable yet"), std::string::npos);
  }
  host[1].addresses[1].duplicate = true;
  EXPECT_NE(Problems(SelectDevices({}, host)).find("another host"), std::string::npos);
}

TEST(SoftSelection, SaysWhatIsNotThere) {
  const std::string problems =
      Problems(SelectDevices({"eth7", "192.0.2.8", "fe80::7", "eth7"}, Host()));
  EXPECT_NE(problems.find("eth7: skipped: neither an interface"), std::string::npos);
  EXPECT_NE(problems.find("192.0.2.8: skipped: no interface"), std::string::npos);
  EXPECT_NE(problems.find("fe80::7: skipped: a link-local address needs"), std::string::npos);
  EXPECT_EQ(std::count(problems.begin(), problems.end(), '\n'), 3) << "each once";
}

TEST(SoftSelection, KeysTellInterfacesAndLoopbackAddressesApart) {
  const std::vector<NetInterface> host = Host();
  const SoftSelection selection = SelectDevices({"127.0.0.2", "127.0.0.3", "eth0"}, host);
  ASSERT_EQ(selection.devices.size(), 3u);
  EXPECT_NE(selection.devices[0].key, selection.devices[1].key);
  EXPECT_EQ(selection.devices[2].key, (SoftDeviceKey{2, IpAddress()}));
  EXPECT_TRUE(selection.devices[0].by_address);
  EXPECT_FALSE(selection.devices[0].by_name);
  EXPECT_TRUE(selection.devices[2].by_name);
}

}  // namespace
}  // namespace rdmad::soft
