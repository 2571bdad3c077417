// The fixture of the tests of live jobs that run on both kernel datapaths.
#pragma once

#include <gtest/gtest.h>

#include "collectives/communicator.h"
#include "transport/ports/uring/uring_port.h"

namespace tarpon::testing_support {

class CommunicatorTest : public testing::TestWithParam<Datapath> {
 protected:
  void SetUp() override {
    if (GetParam() != Datapath::uring) return;
    if (const auto uring = check_uring(); !uring) GTEST_SKIP() << uring.error().message;
  }
};

}  // namespace tarpon::testing_support
