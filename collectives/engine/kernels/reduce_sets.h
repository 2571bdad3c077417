// The copies of reduce_loops.cc, one per instruction set. collectives/engine/kernels/reduce.cc
// picks one.
#pragma once

#include "collectives/engine/kernels/reduce.h"

namespace tarpon::kernels {

const ReduceKernels& baseline(DataType type, ReduceOp function);
const ReduceKernels& avx2(DataType type, ReduceOp function);    // x86-64 only
const ReduceKernels& avx512(DataType type, ReduceOp function);  // x86-64 only

}  // namespace tarpon::kernels
