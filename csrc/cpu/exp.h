// exp() of vectors of float and double, for arguments of at most 2: to about 1 ulp, and to
// something below 1e-37 or 1e-303 where it is smaller. A NaN gives a NaN. In sums it is faster and
// of floats only right within 3e-7.
//
// exp(x) = 2^(n / count) exp(r), where n is the integer next to x count / ln 2 and |r| at most
// ln(2) / 2 / count. In sums, vectors look the power up in a table of `count` entries; elsewhere
// count is 1. exp(r) is a polynomial. Its coefficients were fitted in 50 digits for the smallest
// relative error: 3e-9 of float with one entry, 2e-8 with 8 and 5e-8 with 32; 8e-18 of double.
// Included as walk.h is.
#pragma once

#include <array>
#include <iterator>

#include "cpu/vector.h"

namespace reduceops::cpu {
namespace {

template <class T>
struct Exp;
template <>
struct Exp<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23, kBias = 127;
  static constexpr float kLeast = -86;  // whose power is a normal number still
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kLn2 = 0x1.62e43p-1f, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
};
template <>
struct Exp<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr double kLeast = -700;
  static constexpr double kLog2E = 1.4426950408889634;
  static constexpr double kLn2High = 0x1.62e42fefa2p-1, kLn2Low = 0x1.9ef35793c7673p-41;
};

// The polynomial, over kScale. exp(0) is exactly 1.
template <class T, int kCount>
struct Terms;
template <>
struct Terms<float, 1> {
  static constexpr float kScale = 1;
  static constexpr float k[] = {1.0f,           1.0f,           0.499999934473f, 0.16666520626f,
                                0.04166838814f, 0.00836871737f, 0.00138145941f};
};
template <>
struct Terms<float, 8> {
  static constexpr float kScale = 1;
  static constexpr float k[] = {1.0f, 1.00000005892f, 0.500078354224f, 0.166650999134f};
};
template <>
struct Terms<float, 32> {
  static constexpr float kScale = 0.5f;
  static constexpr float k[] = {2.0f, 2.0000295f, 1.0f};
};
template <>
struct Terms<double, 1> {
  static constexpr double kScale = 1;
  static constexpr double k[] = {1.0,
                                 1.0,
                                 0.500000000000001063,
                                 0.166666666666664125,
                                 0.0416666666665301435,
                                 0.00833333333349446494,
                                 0.00138888889436338411,
                                 0.000198412695065869268,
                                 0.0000248014930952870109,
                                 2.7557586357197801e-6,
                                 2.76302495926389254e-7,
                                 2.50000689758536108e-8};
};
template <>
struct Terms<double, 16> {
  static constexpr double kScale = 1;
  static constexpr double k[] = {1.0,
                                 1.00000000000000203,
                                 0.500000000000001262,
                                 0.166666666629666552,
                                 0.0416666666516336516,
                                 0.00833349481919337591,
                                 0.00138892959536131126};
};

// What is added to the bits of 2^n, of which the last are units of 1 / count.
template <class T, int kCount>
constexpr auto make_powers() {
  using Bits = typename Exp<T>::Bits;
  std::array<Bits, kCount> powers;
  for (Bits i = 0; i < kCount; ++i) {
    const long double x = 0.693147180559945309417232121458L * i / kCount;
    long double power = 1;
    for (int k = 24; k > 0; --k) power = power * x / k + 1;
    powers[i] = std::bit_cast<Bits>(static_cast<T>(power * Terms<T, kCount>::kScale)) -
                std::bit_cast<Bits>(T(1)) - i * (Bits(1) << Exp<T>::kMantissa) / kCount;
  }
  return powers;
}
template <class T, int kCount>
constexpr auto kPowers = make_powers<T, kCount>();

// exp(x - base) of n vectors as the products of both; step by step of all, for a step waits for
// the one before, and instructions that wait keep others out.
template <class T, int n>
struct ExpFactors {
  Vector<T> power[n], rest[n];
};

template <class T, int n, int kCount>
REDUCEOPS_INLINE ExpFactors<T, n> exp_factors(const Vector<T>* x, Vector<T> base) {
  using E = Exp<T>;
  using V = Vector<T>;
  using Bits = Vector<typename E::Bits>;
  const auto all = [](T value) { return V{} + value; };
  constexpr int kShift = E::kMantissa - std::countr_zero(unsigned{kCount});
  // Added to a number it rounds to a multiple of 1 / count, of which the lowest bits are the biased
  // exponent.
  constexpr T kRound = T(1.5) * (typename E::Bits(1) << kShift) + E::kBias;
  V r[n], rounded[n], whole[n];
  ExpFactors<T, n> exp;
  for (int u = 0; u < n; ++u) r[u] = x[u] - base;
  for (int u = 0; u < n; ++u) r[u] = at_least(all(E::kLeast), r[u]);  // a NaN stays
  for (int u = 0; u < n; ++u) rounded[u] = multiply_add(r[u], all(E::kLog2E), all(kRound));
  for (int u = 0; u < n; ++u) whole[u] = rounded[u] - all(kRound);
  if constexpr (kFuses && sizeof(T) == 4) {  // of terms that count in a sum, it is small
    for (int u = 0; u < n; ++u) r[u] = multiply_add(whole[u], all(-E::kLn2), r[u]);
  } else {
    for (int u = 0; u < n; ++u) r[u] = multiply_add(whole[u], all(-E::kLn2High), r[u]);
    for (int u = 0; u < n; ++u) r[u] = multiply_add(whole[u], all(-E::kLn2Low), r[u]);
  }
  constexpr auto& kTerms = Terms<T, kCount>::k;
  constexpr int kLast = std::size(kTerms) - 1;
  for (int u = 0; u < n; ++u) {
    const V term = all(kTerms[kLast - 1]);
    exp.rest[u] = kTerms[kLast] == 1 ? r[u] + term : multiply_add(r[u], all(kTerms[kLast]), term);
  }
  for (int i = kLast - 2; i >= 0; --i)
    for (int u = 0; u < n; ++u) exp.rest[u] = multiply_add(exp.rest[u], r[u], all(kTerms[i]));
  for (int u = 0; u < n; ++u) {
    const Bits bits = reinterpret_cast<Bits>(rounded[u]);
    Bits power = bits << kShift;
    if constexpr (kCount > 1) power += looked_up(kPowers<T, kCount>.data(), bits);
    exp.power[u] = reinterpret_cast<V>(power);
  }
  return exp;
}

template <class T>
REDUCEOPS_INLINE Vector<T> exp_of(Vector<T> x) {
  const auto exp = exp_factors<T, 1, 1>(&x, Vector<T>{});
  return exp.power[0] * exp.rest[0];
}

// The sum of exp(x - base) of n vectors, in pairs, for that rounds the least.
template <class T, int n>
REDUCEOPS_INLINE Vector<T> sum_of_exp(const Vector<T>* x, Vector<T> base) {
  constexpr int kAtOnce = kVectorBytes / 8;  // for which there are registers
  if constexpr (n > kAtOnce) {
    return sum_of_exp<T, n / 2>(x, base) + sum_of_exp<T, n - n / 2>(x + n / 2, base);
  } else {
    const auto exp = exp_factors<T, n, kLookedUp<T>>(x, base);
    Vector<T> sum[(n + 1) / 2];
    for (int i = 0; i < n; i += 2) sum[i / 2] = exp.power[i] * exp.rest[i];
    for (int i = 1; i < n; i += 2) sum[i / 2] = multiply_add(exp.power[i], exp.rest[i], sum[i / 2]);
    for (int count = (n + 1) / 2; count > 1; count = (count + 1) / 2)
      for (int i = 0; i + 1 < count; i += 2) sum[i / 2] = sum[i] + sum[i + 1];
    return sum[0];
  }
}

}  // namespace
}  // namespace reduceops::cpu
