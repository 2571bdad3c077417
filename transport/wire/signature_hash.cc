#include "transport/wire/signature_hash.h"

namespace tarpon {

// CRC-16/IBM-3740 ("CCITT-FALSE"): two signatures that differ within 16 bits in a row, in two bits
// or in an odd number of bits never have the same hash. So two calls that differ in one field other
// than the count never have the same hash, nor do two whose counts differ within 16 bits in a row.
std::uint16_t signature_hash(const Signature& signature) {
  constexpr std::uint32_t kPolynomial = 0x1021;
  std::uint32_t crc = 0xffff;
  for (const std::uint8_t byte : signature) {
    crc ^= std::uint32_t{byte} << 8;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? kPolynomial : 0);
    }
    crc &= 0xffff;
  }
  return static_cast<std::uint16_t>(crc);
}

}  // namespace tarpon
