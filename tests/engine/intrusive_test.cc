#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "daemon/engine/intrusive_list.h"
#include "daemon/engine/intrusive_table.h"

namespace rdmad::engine {
namespace {

struct TagA;
struct TagB;
struct Item : ListHook<TagA>, ListHook<TagB>, TableHook<Item, TagA> {
  explicit Item(int the_id) : id(the_id) {}
  int id;
};
using ListA = IntrusiveList<Item, TagA>;

std::vector<int> Ids(const ListA& list) {
  std::vector<int> ids;
  list.ForEach([&ids](const Item& item) { ids.push_back(item.id); });
  return ids;
}

TEST(IntrusiveList, IsAQueue) {
  Item one(1);
  Item two(2);
  ListA list;
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.PopFront(), nullptr);
  list.PushBack(one);
  list.PushBack(two);
  EXPECT_EQ(list.PopFront(), &one);
  EXPECT_EQ(list.PopFront(), &two);
  EXPECT_TRUE(list.empty());
}

TEST(IntrusiveList, AMemberLeavesFromAnyPlaceAndMayComeAgain) {
  Item items[] = {Item(0), Item(1), Item(2)};
  ListA list;
  for (Item& item : items) list.PushBack(item);
  static_cast<ListHook<TagA>&>(items[1]).Unlink();
  static_cast<ListHook<TagA>&>(items[1]).Unlink();  // not in a list: nothing
  EXPECT_EQ(Ids(list), (std::vector<int>{0, 2}));
  list.PushBack(items[1]);
  EXPECT_EQ(Ids(list), (std::vector<int>{0, 2, 1}));
}

TEST(IntrusiveList, AnItemStandsInListsOfDifferentTags) {
  Item item(1);
  ListA a;
  IntrusiveList<Item, TagB> b;
  a.PushBack(item);
  b.PushBack(item);
  EXPECT_EQ(a.PopFront(), &item);
  EXPECT_EQ(b.front(), &item);
}

TEST(IntrusiveList, TakeToFrontKeepsBothOrders) {
  Item items[] = {Item(0), Item(1), Item(2), Item(3)};
  ListA list;
  ListA other;
  list.PushBack(items[2]);
  list.PushBack(items[3]);
  other.PushBack(items[0]);
  other.PushBack(items[1]);
  list.TakeToFront(other);
  EXPECT_TRUE(other.empty());
  EXPECT_EQ(Ids(list), (std::vector<int>{0, 1, 2, 3}));
  list.TakeToFront(other);
  EXPECT_EQ(Ids(list).size(), 4u);
}

TEST(IntrusiveList, AVisitMayUnlinkItsMember) {
  Item items[] = {Item(0), Item(1), Item(2)};
  ListA list;
  for (Item& item : items) list.PushBack(item);
  list.ForEach([](Item& item) { static_cast<ListHook<TagA>&>(item).Unlink(); });
  EXPECT_TRUE(list.empty());
}

TEST(IntrusiveTable, FindsByKeyAmongMany) {
  std::vector<std::unique_ptr<Item>> items;
  IntrusiveTable<Item, TagA> table;
  for (int i = 0; i < 20000; ++i) {
    items.push_back(std::make_unique<Item>(i));
    table.Insert(*items.back(), static_cast<uint64_t>(i) * 64);
  }
  for (int i = 0; i < 20000; i += 2) table.Remove(*items[i]);
  for (int i = 0; i < 20000; ++i) {
    const Item* const found = table.Find(static_cast<uint64_t>(i) * 64);
    EXPECT_EQ(found, i % 2 == 0 ? nullptr : items[i].get()) << i;
  }
  EXPECT_EQ(table.Find(1), nullptr);
}

}  // namespace
}  // namespace rdmad::engine
