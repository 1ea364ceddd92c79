// The numbers by which the pool decides what to keep, in one place for the pool and for replays of traces.
#pragma once

namespace sluice::experts {

/// What a touch of a record is worth (heat.h). A prefill goes through records once; what decoding comes back
/// to is worth more.
constexpr double kDecodeWeight = 1;
constexpr double kPrefillWeight = 1.0 / 16;
/// Steps after which a touch is worth half. Longer is a little better where popularity never changes, much
/// worse where conversations have favourites: docs/streaming.md has figures.
constexpr double kHalfLife = 64;
/// What a predicted record is believed to be worth until it is wanted, times how often that was right.
constexpr double kPredictedWeight = 2;

}  // namespace sluice::experts
