// A loop over outputs, of which there are few.
#include "cpu/pack.h"

#include <bit>

#include "cpu/parallel.h"
#include "element.h"

namespace reduceops::cpu {
namespace {

constexpr int64_t kPairsOfThread = 4096;

template <class Body>
void for_each_pair(int64_t count, Body body) {
  in_parallel(count, kPairsOfThread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

// Elements in the order in which the calling thread compares them: denormals may count as zero.
template <class Element>
struct AsCompared : Element {
  using typename Element::Key;
  Key key(Key bits) const {
    if constexpr (std::is_same_v<Element, Plain<int32_t, true>>)
      return Element::key(std::bit_cast<float>(bits) == 0 ? Key(0) : bits);
    if constexpr (std::is_same_v<Element, Plain<int64_t, true>>)
      return Element::key(std::bit_cast<double>(bits) == 0 ? Key(0) : bits);
    return Element::key(bits);
  }
};

}  // namespace

void pack_pairs(const Packing& p, const DType& dtype) {
  with_bits(dtype.bytes, [&]<class Key>(Key) {
    for_each_pair(std::max<int64_t>(p.to.count, 1), [&](int64_t i) { pack<Key>(p, i); });
  });
}

void unpack_pairs(const Unpacking& u, const Gathered& words, const Reduction& order) {
  visit_element(order, [&]<class Element>(Element element) {
    for_each_pair(u.count, [&](int64_t i) { unpack(u, AsCompared<Element>{element}, i, words); });
  });
}

}  // namespace reduceops::cpu
