#include "lockstep/ops/cpu/loops.h"

#include "lockstep/ops/cpu/isa.h"

namespace lockstep::cpu {

#define LOCKSTEP_DECLARE_LOOPS(isa)     \
    namespace isa {                     \
    extern const Loops<float> floats;   \
    extern const Loops<double> doubles; \
    }
LOCKSTEP_DECLARE_LOOPS(loops_generic)
LOCKSTEP_DECLARE_LOOPS(loops_avx2)
LOCKSTEP_DECLARE_LOOPS(loops_avx512)
#undef LOCKSTEP_DECLARE_LOOPS

namespace {
template <class Table>
const Table& choose(const Table& generic, const Table& avx2, const Table& avx512) {
    switch (allowed_isa()) {
        case Isa::avx512: return avx512;
        case Isa::avx2: return avx2;
        case Isa::generic: break;
    }
    return generic;
}
}  // namespace

template <>
const Loops<float>& loops<float>() {
    static const auto& table = choose(loops_generic::floats, loops_avx2::floats, loops_avx512::floats);
    return table;
}

template <>
const Loops<double>& loops<double>() {
    static const auto& table = choose(loops_generic::doubles, loops_avx2::doubles, loops_avx512::doubles);
    return table;
}

}  // namespace lockstep::cpu
