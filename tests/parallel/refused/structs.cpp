// Must not compile, with the errors that tests/parallel/CMakeLists.txt lists; with LISTED it must.
#include "lockstep/ops/functional.h"
#include "lockstep/parallel/data_parallel.h"

namespace ls = lockstep;

struct Input {
    ls::Tensor x;
#ifdef LISTED
    LOCKSTEP_MEMBERS(x)
#endif
};

struct Output {
    ls::Tensor y, z;
#ifdef LISTED
    LOCKSTEP_MEMBERS(y, z)
#endif
};

struct Net {
    ls::Parameter scale{ls::Tensor::full({1}, 1)};
    LOCKSTEP_MEMBERS(scale)
    ls::Tensor forward(const Input& in) { return in.x * scale; }
};

struct Pair {
    ls::Parameter scale{ls::Tensor::full({1}, 1)};
    LOCKSTEP_MEMBERS(scale)
    Output forward(const ls::Tensor& x) { return {x, x * scale}; }
};

int main() {
    ls::DataParallel net{Net{}};
    net(Input{ls::Tensor::zeros({2, 1})});
    ls::DataParallel pair{Pair{}};
    pair(ls::Tensor::zeros({2, 1}));
}
