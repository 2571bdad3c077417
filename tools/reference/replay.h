// The order in which a schedule adds up the contributions to a chunk, and the result of that order
// in plain code: what scheduled calls are checked against.
#pragma once

#include <vector>

#include "collectives/engine/schedules/schedule.h"
#include "tools/reference/reference.h"

namespace tarpon {

/// How the result of a range of elements is added up: a program for a stack of values.
struct AdditionProgram {
  static constexpr int kAdd = -1;      // puts a + b in place of a and, on top of it, b
  static constexpr int kAddLeft = -2;  // puts b + a there

  Range elements;
  std::vector<int> steps;  // a rank, whose contribution goes onto the stack, or one of these
};

/// The programs of a call's chunks with elements, replayed from the schedules of all ranks.
std::vector<AdditionProgram> addition_programs(const AllreduceArguments& call, std::uint32_t world,
                                               std::uint32_t operation);

/// The result of one element, value(rank) being the ranks' contributions.
template <typename T, typename Value>
T replay(const AdditionProgram& program, std::uint32_t world, ReduceOp function, Value value) {
  using Sum = SumOf<T>;
  std::vector<Sum> stack;
  for (const int step : program.steps) {
    if (step >= 0) {
      stack.push_back(static_cast<Sum>(value(static_cast<Rank>(step))));
      continue;
    }
    const Sum addend = stack.back();
    stack.pop_back();
    stack.back() = step == AdditionProgram::kAdd ? combine<Sum>(function, stack.back(), addend)
                                                 : combine<Sum>(function, addend, stack.back());
  }
  const Sum result = stack.back();
  if (function == ReduceOp::avg) return static_cast<T>(result / static_cast<Sum>(world));
  return static_cast<T>(result);
}

}  // namespace tarpon
