#include "daemon/device/soft/port_list.h"

#include <gtest/gtest.h>

#include <vector>

namespace rdmad::soft {
namespace {

struct Port {
  int number;
  PortLink<Port> own = {};
  PortLink<Port>& link() { return own; }
};

std::vector<int> Numbers(const PortList<Port>& list) {
  std::vector<int> numbers;
  for (const Port& port : list) numbers.push_back(port.number);
  return numbers;
}

TEST(PortList, KeepsTheOrderInWhichPortsCame) {
  Port a{1}, b{2}, c{3};
  PortList<Port> list;
  EXPECT_TRUE(list.empty());
  EXPECT_FALSE(list.has_one());
  list.Add(a);
  EXPECT_TRUE(list.has_one());
  list.Add(b);
  list.Add(c);
  EXPECT_FALSE(list.has_one());
  EXPECT_EQ(Numbers(list), (std::vector{1, 2, 3}));
  for (Port& port : list) EXPECT_TRUE(port.own.hot);
}

TEST(PortList, AnyPortMayGoAndComeBack) {
  Port ports[] = {{0}, {1}, {2}};
  for (Port& leaves : ports) {
    PortList<Port> list;
    for (Port& port : ports) list.Add(port);
    list.Remove(leaves);
    list.Remove(leaves);  // is not in it any more
    std::vector<int> expected = {0, 1, 2};
    std::erase(expected, leaves.number);
    EXPECT_EQ(Numbers(list), expected);
    list.Add(leaves);
    expected.push_back(leaves.number);
    EXPECT_EQ(Numbers(list), expected);
    for (Port& port : ports) list.Remove(port);
    EXPECT_TRUE(list.empty());
  }
}

}  // namespace
}  // namespace rdmad::soft
