// A decoder's operations and the losses of masks over several processes: bit-identical to one.
#include <vector>

#include "lockstep/ops/dice.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// One step down and up again: pooled, upsampled, padded to the skip's size, concatenated with it.
struct Net {
    Conv2d down{3, 16, 3, {.padding = 1}}, deep{16, 32, 3, {.padding = 1}};
    ConvTranspose2d up{32, 16, 2, {.stride = 2}};
    Conv2d last{48, 3, 1};
    Upsample grow{{.scale_factor = 2, .mode = InterpolateMode::bilinear, .align_corners = true}};
    LOCKSTEP_MEMBERS(down, deep, up, last, grow)

    Tensor forward(const Tensor& x) const {
        const Tensor skip = relu(down(x)), below = relu(deep(max_pool2d(skip, 2)));
        const Tensor learned = pad(up(below), {0, 1, 0, 1});
        const Tensor grown = pad(grow(max_pool2d(skip, 2)), {1, 0, 1, 0});
        return last(cat({skip, learned, grown}, 1));
    }
};

struct Result {
    std::vector<double> losses;
    std::vector<std::vector<float>> values;
    bool operator==(const Result&) const = default;
};

Net seeded() {
    manual_seed(11);
    return {};
}

template <class Model>
Result train(Model& model) {
    SGD sgd(model, {.lr = 0.5, .momentum = 0.9});
    manual_seed(12);
    Result result;
    for (int step = 0; step < 3; ++step) {
        const Tensor x = Tensor::randn({7, 3, 9, 7});
        const Tensor masks = argmax(Tensor::randn({7, 3, 9, 7}), 1);
        result.losses.push_back(model
                                    .step(sgd, x, masks,
                                          [](const Tensor& logits, const Tensor& truth) {
                                              return cross_entropy(logits, truth) +
                                                     dice_loss(softmax(logits, 1), truth);
                                          })
                                    .item());
    }
    for (const NamedTensor& named : named_tensors(*model))
        result.values.push_back(named.member->tensor().template to_vector<float>());
    return result;
}

}  // namespace

TEST_CASE("ranks learn masks bit-identically to one process") {
    for (const int ranks : {1, 2, 4})
        CHECK(on_ranks(ranks, [](ProcessGroup& group) {
                  DistributedDataParallel<Net> model(seeded(), group, {.shards = 4, .seed = 5});
                  const Result found = train(model);
                  DataParallel<Net> alone(seeded(), Devices({Device::cpu(0)}), {.shards = 4, .seed = 5});
                  expect(found == train(alone), "the ranks are not bit-identical to one process");
                  expect(found.losses.back() < found.losses.front(), "the loss does not fall");
                  model.engine().verify_replicas();
              }) == "");
}
