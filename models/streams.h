// The random streams of one step: draws with different numbers never share bits, whatever their seed, image and step.
// Numbers from 2^31 up belong to the data loader.
#pragma once

#include <cstdint>

namespace difuse::models {

inline constexpr int64_t kTimestepStream = 1;       ///< Training: t, or sigma.
inline constexpr int64_t kNoiseStream = 2;          ///< Training: the noise that is predicted.
inline constexpr int64_t kInitialNoiseStream = 3;   ///< Sampling: where an image starts.
inline constexpr int64_t kSamplingNoiseStream = 4;  ///< Sampling: what a stochastic step adds.
inline constexpr int64_t kParameterStream = 5;      ///< Initial parameters.
inline constexpr int64_t kLabelDropoutStream = 6;   ///< Training: which images lose their label.
inline constexpr int64_t kChurnStream = 7;          ///< Sampling: what is added before a step.
inline constexpr int64_t kDropoutStream = 1024;     ///< Training: this and the following, one per dropout in the model.

}  // namespace difuse::models
