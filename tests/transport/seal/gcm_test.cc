// Tags and ciphertexts against published vectors, and the libraries against each other.
#include "transport/seal/gcm.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "transport/seal/packet_key.h"

namespace tarpon::seal::gcm_test {
namespace {

std::vector<std::byte> bytes(const std::string& hex) {
  std::vector<std::byte> result;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    result.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return result;
}

template <typename Array>
Array array(const std::string& hex) {
  Array result{};
  const auto from = bytes(hex);
  std::copy(from.begin(), from.end(), result.begin());
  return result;
}

class GcmTest : public ::testing::TestWithParam<std::unique_ptr<CipherLibrary> (*)()> {
 protected:
  void SetUp() override {
    library_ = GetParam()();
    if (library_ == nullptr) GTEST_SKIP() << "libipsec-mb is not installed";
  }

  std::unique_ptr<CipherLibrary> library_;
};

TEST_P(GcmTest, encrypt__gives_test_case_3_of_the_specification) {
  // McGrew and Viega, "The Galois/Counter Mode of Operation", appendix B.
  const auto key = library_->key(array<Key>("feffe9928665731c6d6a8f9467308308"));
  const auto nonce = array<Nonce>("cafebabefacedbaddecaf888");
  auto text = bytes(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6"
      "b5"
      "25b16aedf5aa0de657ba637b391aafd255");
  const auto plain = text;
  const Tag tag = key->encrypt(nonce, {}, text);
  EXPECT_EQ(text, bytes("42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b254"
                        "66931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985"));
  EXPECT_EQ(tag, array<Tag>("4d5c2af327cd64a62cf35abd2ba6fab4"));
  EXPECT_TRUE(key->decrypt(nonce, {}, text, tag));
  EXPECT_EQ(text, plain);
}

TEST_P(GcmTest, authenticate__gives_a_vector_of_ieee_802_1ae) {
  // GCM-AES-128, 54-byte packet authentication, of IEEE 802.1AE: 70 bytes of additional data, here
  // a header of 64 and a payload of 6.
  const auto key = library_->key(array<Key>("ad7a2bd03eac835a6f620fdcb506b345"));
  const auto nonce = array<Nonce>("12153524c0895e81b2c28465");
  const auto data = bytes(
      "d609b1f056637a0d46df998d88e5222ab2c2846512153524c0895e8108000f101112131415161718191a1b1c1d1e"
      "1f"
      "202122232425262728292a2b2c2d2e2f30313233340001");
  ASSERT_EQ(data.size(), 70u);
  const std::span all(data);
  const Tag tag = array<Tag>("f09478a9b09007d06f46e9b6a1da25dd");
  EXPECT_EQ(key->authenticate(nonce, all.first(64), all.subspan(64)), tag);
  EXPECT_TRUE(key->verify(nonce, all.first(64), all.subspan(64), tag));
}

TEST_P(GcmTest, all_sizes__agree_with_openssl__and_no_changed_bit_passes) {
  const auto other = openssl_library();
  std::mt19937 random(7);
  const auto fill = [&random](auto& to) {
    for (std::byte& one : to) one = static_cast<std::byte>(random());
  };
  for (const std::size_t size : {0u, 1u, 15u, 16u, 17u, 48u, 448u, 1392u, 1408u, 8880u}) {
    Key key_bytes;
    Nonce nonce;
    std::vector<std::byte> header(64), payload(size);
    fill(key_bytes);
    fill(nonce);
    fill(header);
    fill(payload);
    const auto key = library_->key(key_bytes), reference = other->key(key_bytes);
    const Tag tag = key->authenticate(nonce, header, payload);
    EXPECT_EQ(tag, reference->authenticate(nonce, header, payload)) << size;
    auto sealed = payload, expected = payload;
    const Tag sealed_tag = key->encrypt(nonce, header, sealed);
    EXPECT_EQ(sealed_tag, reference->encrypt(nonce, header, expected)) << size;
    EXPECT_EQ(sealed, expected) << size;
    auto opened = sealed;
    EXPECT_TRUE(key->decrypt(nonce, header, opened, sealed_tag)) << size;
    EXPECT_EQ(opened, payload) << size;

    for (int i = 0; i < 20; ++i) {
      const std::size_t bit = random() % ((header.size() + size + tag.size()) * 8);
      auto bad_header = header, bad_payload = payload, bad_sealed = sealed;
      Tag bad_tag = tag, bad_sealed_tag = sealed_tag;
      const auto flip = [bit](std::byte& one) { one ^= std::byte{1} << bit % 8; };
      if (bit / 8 < header.size()) {
        flip(bad_header[bit / 8]);
      } else if (bit / 8 < header.size() + size) {
        flip(bad_payload[bit / 8 - header.size()]);
        flip(bad_sealed[bit / 8 - header.size()]);
      } else {
        flip(bad_tag[bit / 8 - header.size() - size]);
        flip(bad_sealed_tag[bit / 8 - header.size() - size]);
      }
      EXPECT_FALSE(key->verify(nonce, bad_header, bad_payload, bad_tag)) << size << " bit " << bit;
      EXPECT_FALSE(key->decrypt(nonce, bad_header, bad_sealed, bad_sealed_tag))
          << size << " bit " << bit;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Libraries, GcmTest, ::testing::Values(openssl_library, ipsec_mb_library),
                         [](const auto& info) {
                           return info.param == openssl_library ? "openssl" : "ipsec_mb";
                         });

TEST(JobKeyTest, derive_key__gives_a_vector_of_rfc_5869) {
  // Appendix A.3: no salt, no info.
  const auto secret = bytes("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b");
  std::vector<std::byte> key(42);
  derive_key(secret, "", key);
  EXPECT_EQ(key,
            bytes("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4"
                  "b61a96c8"));
}

TEST(PacketKeyTest, packet_key__differs_by_each_part_of_the_direction) {
  JobKey job{};
  const Direction base{.sender = 1, .receiver = 2, .generation = 3};
  const Key key = packet_key(job, base);
  EXPECT_EQ(packet_key(job, base), key);
  EXPECT_NE(packet_key(job, {.sender = 2, .receiver = 1, .generation = 3}), key);
  EXPECT_NE(packet_key(job, {.sender = 1, .receiver = 2, .generation = 4}), key);
  EXPECT_NE(packet_key(job, {.sender = 1, .receiver = kAllRanks, .generation = 3}), key);
  job[0] = std::byte{1};
  EXPECT_NE(packet_key(job, base), key);
}

}  // namespace
}  // namespace tarpon::seal::gcm_test
