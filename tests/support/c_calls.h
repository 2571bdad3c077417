// What tests of the C interface share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <thread>

#include "collectives/tarpon.h"

namespace tarpon::testing_support {

inline constexpr std::int64_t kSecond = 1'000'000;  // in microseconds

/// A struct of a program that was built with a newer header.
template <typename T>
struct Newer {
  T known{};
  std::uint64_t more[2]{};

  Newer() { known.size = sizeof(Newer); }
  T* get() { return reinterpret_cast<T*>(this); }
};

inline void on_both(const std::function<void(std::size_t)>& body) {
  std::thread other([&] { body(1); });
  body(0);
  other.join();
}

inline tarpon_arguments call_on(float* data, std::uint64_t count, std::uint32_t tag = 0) {
  tarpon_arguments call{};
  call.size = sizeof call;
  call.input = data;
  call.output = data;
  call.count = count;
  call.tag = tag;
  call.deadline_us = 10 * kSecond;
  return call;
}

inline tarpon_summary summary_of(const tarpon_report* report) {
  tarpon_summary summary{};
  summary.size = sizeof summary;
  EXPECT_EQ(tarpon_report_summary(report, &summary), TARPON_OK) << tarpon_error_text();
  return summary;
}

}  // namespace tarpon::testing_support
