#include "tests/bench/full_length.h"

#include <immintrin.h>

namespace tarpon {
namespace {

// What stays in the first cache is done pass by pass; above that, halves first.
constexpr std::size_t kBase = 4096;

/// The three distances within a register of eight.
inline __m256 within(__m256 x) {
  const __m256 far = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
  const __m256 middle = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
  const __m256 near = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
  x = _mm256_fmadd_ps(x, far, _mm256_permute2f128_ps(x, x, 1));
  x = _mm256_fmadd_ps(x, middle, _mm256_permute_ps(x, 0x4e));
  return _mm256_fmadd_ps(x, near, _mm256_permute_ps(x, 0xb1));
}

inline void butterfly(__m256& a, __m256& b) {
  const __m256 sum = _mm256_add_ps(a, b);
  b = _mm256_sub_ps(a, b);
  a = sum;
}

inline void eight(__m256* x) {
  butterfly(x[0], x[1]), butterfly(x[2], x[3]), butterfly(x[4], x[5]), butterfly(x[6], x[7]);
  butterfly(x[0], x[2]), butterfly(x[1], x[3]), butterfly(x[4], x[6]), butterfly(x[5], x[7]);
  butterfly(x[0], x[4]), butterfly(x[1], x[5]), butterfly(x[2], x[6]), butterfly(x[3], x[7]);
}

/// Distances step, 2 step, 4 step over [0, 8 step).
inline void three_distances(float* x, std::size_t step) {
  for (std::size_t at = 0; at < step; at += 8) {
    __m256 r[8];
    for (std::size_t i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(x + at + i * step);
    eight(r);
    for (std::size_t i = 0; i < 8; ++i) _mm256_storeu_ps(x + at + i * step, r[i]);
  }
}

inline void one_distance(float* x, std::size_t step) {
  for (std::size_t at = 0; at < step; at += 8) {
    __m256 a = _mm256_loadu_ps(x + at), b = _mm256_loadu_ps(x + at + step);
    butterfly(a, b);
    _mm256_storeu_ps(x + at, a);
    _mm256_storeu_ps(x + at + step, b);
  }
}

/// 64 elements in registers.
inline void shortest(float* x) {
  __m256 r[8];
  for (std::size_t i = 0; i < 8; ++i) r[i] = within(_mm256_loadu_ps(x + 8 * i));
  eight(r);
  for (std::size_t i = 0; i < 8; ++i) _mm256_storeu_ps(x + 8 * i, r[i]);
}

void base(float* x, std::size_t n) {
  for (std::size_t at = 0; at < n; at += 64) shortest(x + at);
  std::size_t done = 64;
  for (; done * 8 <= n; done *= 8) {
    for (std::size_t at = 0; at < n; at += done * 8) three_distances(x + at, done);
  }
  for (; done < n; done *= 2) {
    for (std::size_t at = 0; at < n; at += done * 2) one_distance(x + at, done);
  }
}

}  // namespace

void plain_full_length_hadamard(float* x, std::size_t n) {
  if (n == 64) return shortest(x);
  plain_full_length_hadamard(x, n / 2);
  plain_full_length_hadamard(x + n / 2, n / 2);
  one_distance(x, n / 2);
}

void full_length_hadamard(float* x, std::size_t n) {
  if (n <= kBase) return base(x, n);
  if (n >= 8 * kBase) {
    for (std::size_t i = 0; i < 8; ++i) full_length_hadamard(x + i * (n / 8), n / 8);
    return three_distances(x, n / 8);
  }
  full_length_hadamard(x, n / 2);
  full_length_hadamard(x + n / 2, n / 2);
  one_distance(x, n / 2);
}

}  // namespace tarpon
