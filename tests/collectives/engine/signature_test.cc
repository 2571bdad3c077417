// The 24 bytes of a signature, and differences in words.
#include "collectives/engine/call/signature.h"

#include <gtest/gtest.h>

#include "collectives/types.h"
#include "tools/reference/reference.h"

namespace tarpon::signature_test {
namespace {

OperationSignature example() {
  OperationSignature signature;
  signature.type = DataType::int64;
  signature.function = ReduceOp::max;
  signature.mode = Mode::bounded;
  signature.slot_bytes = 1408;
  signature.count = 0x0102030405060708;
  signature.epoch = 0xabcd;
  signature.codec = Codec::hadamard;
  return signature;
}

TEST(SignatureTest, encode__fixed_little_endian_layout) {
  const SignatureBytes expected{3, 3, 1, 1, 0x80, 0x05, 0, 0, 8, 7, 6, 5,
                                4, 3, 2, 1, 0xcd, 0xab, 0, 1, 0, 0, 0, 0};
  EXPECT_EQ(encode(example()), expected);
}

TEST(SignatureTest, decode__gives_back_what_was_encoded) {
  for (std::size_t type = 0; type < kDataTypes; ++type) {
    for (std::size_t function = 0; function < kReduceOps; ++function) {
      OperationSignature signature = example();
      signature.type = static_cast<DataType>(type);
      signature.function = static_cast<ReduceOp>(function);
      EXPECT_EQ(decode(encode(signature)), signature);
    }
  }
}

TEST(SignatureTest, custom__the_id_of_a_callers_function_is_in_the_last_bytes) {
  OperationSignature signature = example();
  signature.function = ReduceOp::custom;
  signature.custom = 0x01020304;
  const SignatureBytes bytes = encode(signature);
  EXPECT_EQ(bytes[1], 8);
  EXPECT_EQ((std::vector<std::uint8_t>(bytes.begin() + 20, bytes.end())),
            (std::vector<std::uint8_t>{4, 3, 2, 1}));
  EXPECT_EQ(decode(bytes), signature);
}

TEST(SignatureTest, parameter__belongs_to_the_algorithms_that_have_one) {
  for (const auto& [algorithm, field] :
       {std::pair{Algorithm::two_level_tar, &OperationSignature::group_size},
        std::pair{Algorithm::late_rank, &OperationSignature::late_rank}}) {
    OperationSignature signature = example();
    signature.algorithm = algorithm;
    EXPECT_EQ(decode(encode(signature)), std::nullopt) << name(algorithm);
    signature.*field = 4;
    EXPECT_EQ(decode(encode(signature)), signature) << name(algorithm);
  }
}

TEST(SignatureTest, learns__is_the_parameter_of_tar) {
  OperationSignature signature = example();
  signature.learns = true;
  EXPECT_EQ(encode(signature)[18], 1);
  EXPECT_EQ(decode(encode(signature)), signature);
}

TEST(SignatureTest, collective__is_in_the_upper_half_of_the_mode_and_its_root_the_parameter) {
  for (std::size_t number = 0; number < kCollectives; ++number) {
    OperationSignature signature = example();
    signature.mode = Mode::exact;
    signature.collective = static_cast<Collective>(number);
    if (has_root(signature.collective)) signature.root = 63;
    const SignatureBytes bytes = encode(signature);
    EXPECT_EQ(bytes[3], number << 4);
    EXPECT_EQ(bytes[18], signature.root);
    EXPECT_EQ(decode(bytes), signature) << name(signature.collective);
  }
  OperationSignature rootless = example();
  rootless.collective = Collective::all_gather;
  SignatureBytes bytes = encode(rootless);
  bytes[18] = 1;
  EXPECT_EQ(decode(bytes), std::nullopt);
  bytes = encode(example());
  bytes[3] = kCollectives << 4;
  EXPECT_EQ(decode(bytes), std::nullopt);
}

TEST(SignatureTest, decode__refuses_values_it_does_not_know) {
  struct {
    std::size_t at;
    std::uint8_t value;
  } const unknown[] = {
      {0, kDataTypes}, {1, kReduceOps}, {2, 0},  {2, static_cast<std::uint8_t>(kLastAlgorithm) + 1},
      {3, 2},          {18, 2},         {19, 2}, {20, 1},
      {23, 1}};
  for (const auto& [at, value] : unknown) {
    SignatureBytes bytes = encode(example());
    bytes[at] = value;
    EXPECT_EQ(decode(bytes), std::nullopt) << "offset " << at;
  }
}

TEST(SignatureTest, first_difference__nothing_for_equal_signatures) {
  EXPECT_EQ(first_difference(example(), example()), std::nullopt);
}

TEST(SignatureTest, first_difference__names_each_field_and_both_values) {
  const auto words = [](auto change) {
    OperationSignature other;
    change(other);
    return first_difference(OperationSignature{}, other).value_or("equal");
  };
  using S = OperationSignature;
  EXPECT_EQ(words([](S& s) { s.count = 2000; }), "count 0 instead of 2000");
  EXPECT_EQ(words([](S& s) { s.type = DataType::float64; }), "type float instead of double");
  EXPECT_EQ(words([](S& s) { s.function = ReduceOp::prod; }), "function sum instead of prod");
  EXPECT_EQ(words([](S& s) { s.custom = 7; }), "custom function 0 instead of 7");
  EXPECT_EQ(words([](S& s) { s.mode = Mode::bounded; }), "mode exact instead of bounded");
  EXPECT_EQ(words([](S& s) { s.group_size = 4; }), "group size 0 instead of 4");
  S late, other_late;
  late.late_rank = 3;
  other_late.late_rank = 4;
  EXPECT_EQ(first_difference(late, other_late), "late rank 2 instead of 3");
  EXPECT_EQ(words([](S& s) { s.learns = true; }), "learn_shares 0 instead of 1");
  S learnt, other_learnt;
  learnt.learns = other_learnt.learns = true;
  other_learnt.shares = 9;
  EXPECT_EQ(first_difference(learnt, other_learnt), "hash of the learnt shares 0 instead of 9");
  EXPECT_EQ(words([](S& s) { s.shares = 9; }), "hash of the shares 0 instead of 9");
  EXPECT_EQ(words([](S& s) { s.codec = Codec::hadamard; }), "codec none instead of hadamard");
  EXPECT_EQ(words([](S& s) { s.slot_bytes = 1408; }), "slot bytes 0 instead of 1408");
  EXPECT_EQ(words([](S& s) { s.epoch = 3; }), "epoch 0 instead of 3");
}

TEST(TypesTest, parse__is_the_inverse_of_name) {
  for (std::size_t i = 0; i < kDataTypes; ++i) {
    EXPECT_EQ(parse_data_type(name(static_cast<DataType>(i))), static_cast<DataType>(i));
  }
  for (std::size_t i = 0; i < kReduceOps; ++i) {
    EXPECT_EQ(parse_reduce_op(name(static_cast<ReduceOp>(i))), static_cast<ReduceOp>(i));
  }
  EXPECT_EQ(parse_mode("bounded"), Mode::bounded);
  EXPECT_EQ(name(Algorithm::tar), "tar");
}

TEST(TypesTest, parse__aliases_and_refusals) {
  EXPECT_EQ(parse_data_type("float32"), DataType::float32);
  EXPECT_EQ(parse_data_type("float64"), DataType::float64);
  EXPECT_EQ(parse_data_type("float16"), DataType::float16);
  EXPECT_EQ(parse_data_type("complex"), std::nullopt);
  EXPECT_EQ(parse_reduce_op("SUM"), std::nullopt);
  EXPECT_EQ(parse_mode(""), std::nullopt);
}

TEST(TypesTest, element_bytes__match_the_types) {
  EXPECT_EQ(element_bytes(DataType::float32), sizeof(float));
  EXPECT_EQ(element_bytes(DataType::float64), sizeof(double));
  EXPECT_EQ(element_bytes(DataType::int32), sizeof(std::int32_t));
  EXPECT_EQ(element_bytes(DataType::int64), sizeof(std::int64_t));
  for (std::size_t i = 0; i < kDataTypes; ++i) {
    const auto type = static_cast<DataType>(i);
    with_element_type(type, [&](auto zero) {
      using T = decltype(zero);
      EXPECT_EQ(data_type_of<T>(), type);
      EXPECT_EQ(element_bytes(type), sizeof(T));
      EXPECT_EQ(is_integer(type), std::is_integral_v<T>);
      EXPECT_EQ(is_half(type), kIsHalf<T>);
      EXPECT_EQ(is_defined(type, ReduceOp::bxor), std::is_integral_v<T>);
      EXPECT_TRUE(is_defined(type, ReduceOp::custom));
    });
  }
}

}  // namespace
}  // namespace tarpon::signature_test
