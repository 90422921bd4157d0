// One application's context on two engines, against the fake library.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "daemon/device/verbs/open_context.h"
#include "daemon/device/verbs/verbs_context.h"
#include "daemon/device/verbs/verbs_data_path.h"
#include "tests/device/verbs/verbs_data_path_testing.h"
#include "tests/support/status_testing.h"

namespace rdmad::verbs {
namespace {

class VerbsLanesTest : public VerbsObjectsTest {
 protected:
  void SetUp() override {
    VerbsObjectsTest::SetUp();
    ASSERT_OK_AND_ASSIGN(other_path_, VerbsDataPath::Create(&sink_, 1));
    ASSERT_OK_AND_ASSIGN(other_open_, open_->Share(other_path_.get()));
    other_ =
        std::make_unique<VerbsContext>(other_open_, std::vector{path_.get(), other_path_.get()});
    other_->Activate(now_);
  }
  void TearDown() override {
    other_->Deactivate(now_);
    other_.reset();
    other_open_.reset();
    VerbsObjectsTest::TearDown();
  }

  std::unique_ptr<VerbsDataPath> other_path_;
  std::shared_ptr<OpenContext> other_open_;
  std::unique_ptr<VerbsContext> other_;
  std::array<std::byte, 4096> bytes_;
};

TEST_F(VerbsLanesTest, BothAreOfOneHardwareContextAndHaveAChannelEach) {
  EXPECT_EQ(other_open_->hw(), open_->hw());
  EXPECT_NE(other_open_->channel(), open_->channel());
  EXPECT_TRUE(open_->first());
  EXPECT_FALSE(other_open_->first()) << "asynchronous events are one engine's";
  EXPECT_EQ(open_->hardware()->contexts().size(), 2u);
}

TEST_F(VerbsLanesTest, ARegionCanBeBoundToByBothUntilItIsGone) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<device::Mr> region,
                       context_->RegisterMr(*pd_, {.host_addr = bytes_.data(),
                                                   .length_bytes = bytes_.size(),
                                                   .access = device::kAccessAll}));
  ASSERT_OK(region->Prepare());
  region->Activate(now_);
  const std::unique_ptr<device::EngineObject> part = other_->PartOf(*region);
  ASSERT_NE(part, nullptr);
  part->Activate(now_);
  EXPECT_NE(open_->windows().FindRegion(region->lkey()), nullptr);
  EXPECT_NE(other_open_->windows().FindRegion(region->lkey()), nullptr);
  region->Deactivate(now_);
  EXPECT_NE(other_open_->windows().FindRegion(region->lkey()), nullptr);
  part->Deactivate(now_);
  EXPECT_EQ(other_open_->windows().FindRegion(region->lkey()), nullptr);
}

TEST_F(VerbsLanesTest, ARegionWithoutTheRightIsOfNoInterestToAnyEngine) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<device::Mr> region,
                       context_->RegisterMr(*pd_, {.host_addr = bytes_.data(),
                                                   .length_bytes = bytes_.size(),
                                                   .access = device::kAccessLocalWrite}));
  ASSERT_OK(region->Prepare());
  EXPECT_EQ(other_->PartOf(*region), nullptr);
}

TEST_F(VerbsLanesTest, AWindowIsOfTheEngineThatNamesItFirst) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<device::Mw> window, context_->AllocMw(*pd_));
  window->Activate(now_);
  const std::unique_ptr<device::EngineObject> part = other_->PartOf(*window);
  part->Activate(now_);
  EXPECT_NE(other_open_->windows().FindWindow(window->rkey()), nullptr);
  EXPECT_EQ(open_->windows().FindWindow(window->rkey()), nullptr);
  EXPECT_NE(other_open_->windows().FindWindow(window->rkey()), nullptr) << "and stays it";
  part->Deactivate(now_);
  window->Deactivate(now_);
}

TEST_F(VerbsLanesTest, ABrokenCqIsToldOfByTheEngineThatDrivesIt) {
  RecordingSink other_sink;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<device::Cq> cq, other_->CreateCq(64, &other_sink));
  cq->Activate(now_);
  lib_.RaiseAsync(IBV_EVENT_CQ_ERR);
  Turn();
  Turn();
  EXPECT_EQ(other_sink.errors, 0) << "not on the thread of the first";
  other_path_->DoWork(now_);
  EXPECT_EQ(other_sink.errors, 1);
  EXPECT_EQ(sink_.errors, 0) << "the first engine's own CQ is well";
  other_path_->DoWork(now_ += 10'000);
  EXPECT_EQ(other_sink.errors, 1) << "said once";
  cq->Deactivate(now_);
}

TEST_F(VerbsLanesTest, ACqThatIsGoneBeforeItsEngineLooksIsNotTouched) {
  RecordingSink other_sink;
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<device::Cq> cq, other_->CreateCq(64, &other_sink));
  cq->Activate(now_);
  lib_.RaiseAsync(IBV_EVENT_CQ_ERR);
  Turn();
  cq->Deactivate(now_);
  cq.reset();
  other_path_->DoWork(now_);
  EXPECT_EQ(other_sink.errors, 0);
}

TEST_F(VerbsLanesTest, WhenTheDeviceIsGoneEachEngineLetsGoByItself) {
  path_->Kill(*open_, now_);
  EXPECT_TRUE(open_->dead());
  EXPECT_FALSE(other_open_->dead());
  other_path_->Kill(*other_open_, now_);
  EXPECT_TRUE(open_->hardware()->CloseHardware());
  EXPECT_EQ(lib_.open_objects, 0) << "the channels of both";
  EXPECT_TRUE(absl::IsUnavailable(open_->Share(other_path_.get()).status()));
}

}  // namespace
}  // namespace rdmad::verbs
