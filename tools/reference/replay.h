// The order in which a schedule adds up the contributions to a chunk, and the result of that order
// in plain code: what scheduled calls are checked against.
#pragma once

#include <vector>

#include "collectives/engine/schedules/host_plan.h"
#include "collectives/engine/schedules/schedule.h"
#include "tools/reference/reference.h"

namespace tarpon {

/// How the result of a range of elements is added up: a program for a stack of values.
struct AdditionProgram {
  static constexpr int kAdd = -1;      // puts a + b in place of a and, on top of it, b
  static constexpr int kAddLeft = -2;  // puts b + a there
  static constexpr int kRound = -3;    // rounds a to the type of the elements
  static constexpr int kAverage = -4;  // divides a by the number of ranks, and rounds it

  Range elements;
  std::vector<int> steps;  // a rank, whose contribution goes onto the stack, or one of these
  bool averages = false;   // it has a kAverage: the result is not divided
};

/// The programs of a call's chunks with elements, by algorithms that have schedules, replayed from
/// the schedules of all ranks.
std::vector<AdditionProgram> addition_programs(const AllreduceArguments& call, std::uint32_t world,
                                               std::uint32_t operation);

/// The same of a call of algorithm hosts. `shape`: HostGroup::memory's; with one host `ranks`
/// counts.
std::vector<AdditionProgram> addition_programs(const AllreduceArguments& call,
                                               const hosts::HostLayout& layout,
                                               const hosts::HostShape& shape,
                                               std::uint32_t operation);

/// The program of what rank `to` adds up in a collective by hosts, of all elements.
AdditionProgram addition_program(const AllreduceArguments& call, const hosts::HostLayout& layout,
                                 Rank to);

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
    if (step == AdditionProgram::kRound || step == AdditionProgram::kAverage) {
      const Sum divisor = step == AdditionProgram::kRound ? Sum{1} : static_cast<Sum>(world);
      stack.back() = static_cast<Sum>(static_cast<T>(stack.back() / divisor));
      continue;
    }
    const Sum addend = stack.back();
    stack.pop_back();
    stack.back() = step == AdditionProgram::kAdd ? combine<Sum>(function, stack.back(), addend)
                                                 : combine<Sum>(function, addend, stack.back());
  }
  const Sum result = stack.back();
  if (function == ReduceOp::avg && !program.averages)
    return static_cast<T>(result / static_cast<Sum>(world));
  return static_cast<T>(result);
}

}  // namespace tarpon
