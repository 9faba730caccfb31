// Bools of which a mask says that some take no part: integers, with one value more for those.
//
// All bools of a group often equal the identity. As absent ones are told apart from these, the mask
// is not read again to know which they are.
#pragma once

#include "element.h"

namespace reduceops::cpu {

struct MarkedBool : Plain<int8_t, false> {
  static constexpr Key kFalse = 0, kTrue = 1;  // what a Source hands over
  explicit MarkedBool(bool largest)
      : Plain{{largest ? Key(-1) : Key(0), 0, largest ? Key(~kTrue) : kFalse}} {}
  // What a Source would hand over, of a byte in memory.
  static REDUCEOPS_HD Key stored(Key byte) { return byte != 0; }
  // That of an absent one is the identity: true for min, false for max.
  REDUCEOPS_HD Key value(Key bits) const { return bits & kTrue; }
  REDUCEOPS_HD bool value_of_key(Key key, Key& value) const {
    value = this->value(key ^ order.flip);
    return true;
  }
};

}  // namespace reduceops::cpu
