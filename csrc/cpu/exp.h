// exp() of vectors of float and double, for arguments of at most 2: to about 1 ulp, and to
// something below 1e-37 or 1e-307 where it is smaller. A NaN gives a NaN.
//
// exp(x) = 2^n exp(r), where n is the integer next to x / ln 2 and |r| at most ln(2) / 2; exp(r) is
// a polynomial. Its coefficients were fitted in 50 digits for the smallest relative error: 3e-9 of
// float, 4e-18 of double. Included as walk.h is.
#pragma once

#include <iterator>

#include "cpu/vector.h"

namespace reduceops::cpu {
namespace {

template <class T>
struct ExpOf;

template <>
struct ExpOf<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr float kLeast = -87;  // whose n is an exponent still
  // Added to a number it rounds to an integer, of which the lowest bits are the biased exponent.
  static constexpr float kRound = 0x1.8p23f + 127;
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kLn2 = 0x1.62e43p-1f, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kTerms[] = {
      1.0f, 1.0f, 0.499999934473f, 0.16666520626f, 0.04166838814f, 0.00836871737f, 0.00138145941f};
};
template <>
struct ExpOf<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52;
  static constexpr double kLeast = -708;
  static constexpr double kRound = 0x1.8p52 + 1023;
  static constexpr double kLog2E = 1.4426950408889634;
  static constexpr double kLn2High = 0x1.62e42fefa2p-1, kLn2Low = 0x1.9ef35793c7673p-41;
  static constexpr double kTerms[] = {1.0,
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

template <class T>
REDUCEOPS_INLINE Vector<T> exp_of(Vector<T> x) {
  using E = ExpOf<T>;
  using V = Vector<T>;
  using Bits = Vector<typename E::Bits>;
  const auto all = [](T value) { return V{} + value; };
  x = at_least(all(E::kLeast), x);  // a NaN stays
  const V rounded = multiply_add(x, all(E::kLog2E), all(E::kRound));
  const V n = rounded - all(E::kRound);
  V r;
  if constexpr (kFuses && sizeof(T) == 4) {  // of terms that count in a sum, n is small
    r = multiply_add(n, all(-E::kLn2), x);
  } else {
    r = multiply_add(n, all(-E::kLn2High), x);
    r = multiply_add(n, all(-E::kLn2Low), r);
  }
  constexpr int kLast = std::size(E::kTerms) - 1;
  V sum = all(E::kTerms[kLast]);
  for (int i = kLast - 1; i >= 0; --i) sum = multiply_add(sum, r, all(E::kTerms[i]));
  if constexpr (kScales) return times_power(sum, n);
  return sum * reinterpret_cast<V>(reinterpret_cast<Bits>(rounded) << E::kMantissa);
}

}  // namespace
}  // namespace reduceops::cpu
