// Tests that run kernels in several schedules and compare the results with loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "lockstep/tests/ops/op_table.h"
#include "lockstep/tests/ptx/emulate.h"

namespace lockstep::test {

/// Largest difference relative to the largest element, or to 1.
inline double error(const Array& found, const Array& expected) {
    double difference = 0, scale = 1;
    for (const double value : expected.v) scale = std::max(scale, std::abs(value));
    for (std::size_t i = 0; i < expected.v.size(); ++i)
        difference = std::max(difference, std::abs(found.v[i] - expected.v[i]));
    return difference / scale;
}

/// Restores how launches run.
struct Restored {
    ptx::Emulation before = ptx::emulation();
    ~Restored() { ptx::emulation() = before; }
};

}  // namespace lockstep::test
