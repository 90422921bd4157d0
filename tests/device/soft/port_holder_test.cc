#include "daemon/device/soft/port_holder.h"

#include <string>

#include "gtest/gtest.h"

namespace rdmad::soft {
namespace {

constexpr char kHead[] =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
    "inode ref pointer drops\n";

struct Case {
  const char* what;
  const char* line;
  bool wildcard;
};

TEST(PortHolder, FindsASocketOnAllAddressesAndNoOther) {
  const Case kCases[] = {
      {"rxe over IPv4", " 2512: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000", true},
      {"rxe over IPv6",
       "  917: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07", true},
      {"one address", " 2512: 0200007F:12B7 00000000:0000 07", false},
      {"another port", " 2512: 00000000:12B8 00000000:0000 07", false},
      {"the peer's port", " 2512: 00000000:0035 00000000:12B7 07", false},
      {"cut off", " 2512: 00000000", false},
      {"empty", "", false},
  };
  for (const Case& one : kCases) {
    EXPECT_EQ(HasWildcardSocket(std::string(kHead) + one.line + "\n", 4791), one.wildcard)
        << one.what;
    EXPECT_EQ(HasWildcardSocket(one.line, 4791), one.wildcard) << one.what << ", last line";
  }
}

TEST(PortHolder, AdviceNamesThePortAndWhatToDo) {
  const std::string advice = PortHolderAdvice("UDP port 9 on 192.0.2.1", 9);
  EXPECT_NE(advice.find("UDP port 9 on 192.0.2.1"), std::string::npos);
  EXPECT_NE(advice.find("leave this address out"), std::string::npos);
}

}  // namespace
}  // namespace rdmad::soft
