// What a touch of a record is worth, for the choice of those that stay in the pool.
#pragma once

namespace sluice::experts {

/// Of a decode step's, whatever the number of its rows.
constexpr double kDecodeWeight = 1;
/// Of each row of a prefill that chose the record: a prompt goes through the records once, decoding comes
/// back.
constexpr double kPrefillWeight = 1.0 / 16;
/// Most that one prefill chunk adds.
constexpr double kMostPrefill = 1;
/// Steps after which a touch is worth half.
constexpr double kHalfLife = 256;
/// What a predicted record is believed to be worth until it is wanted.
constexpr double kPredictedWeight = 0.5;

}  // namespace sluice::experts
